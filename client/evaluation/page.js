"use strict";
const $ = (id) => document.getElementById(id);

// Text goes in as text nodes only: nothing that a model or an environment wrote is ever read as HTML.
function make(tag, css, ...children) {
  const node = document.createElement(tag);
  if (css) node.className = css;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Tables: click a heading to sort.
for (const table of document.querySelectorAll("table.data")) {
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head) return;
    const column = [...head.parentNode.children].indexOf(head);
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.children[column].dataset.v ?? row.children[column].textContent;
    const body = table.tBodies[0];
    const sorted = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? String(y).localeCompare(x) : y - x;
      return up ? -order : order;
    });
    body.append(...sorted);
  });
}
