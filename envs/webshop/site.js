// Choosing a value sends it at once. With the arrow keys one looks through the values first: Space or Enter sends.
let arrows = false;
addEventListener("keydown", (event) => {
  arrows = event.key.startsWith("Arrow");
  // A browser makes no click of Space on a value that an arrow key has marked already.
  if (event.key === " " && event.target.matches("input[type=radio]:checked")) event.target.form.requestSubmit();
});
addEventListener("keyup", () => { arrows = false; });
addEventListener("click", (event) => {
  const radio = event.target;
  if (radio instanceof HTMLInputElement && radio.type === "radio" && !arrows) radio.form.requestSubmit();
});
