"use strict";
// Everything here is a convenience: without it the report is whole, only not sorted by hand.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const text = (body, column) => body.rows[0].cells[column].textContent.trim();
  const number = (value) => Number(value.replace(/,/g, ""));
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const compare = head.classList.contains("n")
        ? (a, b) => number(text(a, column)) - number(text(b, column))
        : (a, b) => text(a, column).localeCompare(text(b, column));
      const bodies = [...table.tBodies].sort((a, b) => sign * compare(a, b));
      table.append(...bodies);
    });
  });
}
for (const filter of document.querySelectorAll(".filter")) {
  const table = filter.parentElement.querySelector("table.rows");
  filter.hidden = false;
  filter.querySelector("input").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    for (const body of table.tBodies) {
      body.hidden = !body.rows[0].textContent.toLowerCase().includes(wanted);
    }
  });
}
