// Choosing a value sends it at once. With the arrow keys one looks through the values first: Space or Enter sends.
let arrows = false;
addEventListener("keydown", (event) => { arrows = event.key.startsWith("Arrow"); });
addEventListener("keyup", () => { arrows = false; });
addEventListener("click", (event) => {
  const radio = event.target;
  if (radio instanceof HTMLInputElement && radio.type === "radio" && !arrows) radio.form.requestSubmit();
});
