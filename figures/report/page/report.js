"use strict";

/* Values of figures: each mark says its own, to the pointer and to the arrow keys. */

const tip = document.getElementById("tip");

function show(mark, x, y) {
  tip.textContent = mark.dataset.text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}

function hide() {
  tip.hidden = true;
}

function listen(chart) {
  const marks = [...chart.querySelectorAll(".marks > *")];
  const reading = chart.closest("figure").querySelector(".reading");
  let at = -1;

  for (const mark of marks) {  // the browser's own box would stand beside ours
    const title = mark.querySelector("title");
    mark.dataset.text = title.textContent;
    title.remove();
  }

  function choose(place) {
    if (at >= 0) marks[at].classList.remove("on");
    at = place;
    if (at < 0) { reading.textContent = ""; hide(); return; }
    const mark = marks[at];
    mark.classList.add("on");
    mark.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    const box = mark.getBoundingClientRect();
    reading.textContent = mark.dataset.text;
    show(mark, box.right - 8, box.top + box.height / 2);
  }

  chart.addEventListener("pointermove", (event) => {
    const mark = event.target.closest(".marks > *");
    if (mark) show(mark, event.clientX, event.clientY);
    else hide();
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") choose(-1);
    else if (event.key === "Home" && marks.length) choose(0);
    else if (event.key === "End" && marks.length) choose(marks.length - 1);
    else if (by && marks.length) choose((at + by + marks.length) % marks.length);
    else return;
    event.preventDefault();
  });
  chart.addEventListener("blur", () => choose(-1));
}

document.querySelectorAll(".chart").forEach(listen);
addEventListener("scroll", () => {
  if (!document.querySelector(".marks > .on")) hide();
}, { passive: true });
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
