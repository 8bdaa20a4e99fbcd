const data = JSON.parse(document.getElementById("data").textContent);

function size(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < 4) { count /= 1024; unit += 1; }
  const digits = unit === 0 ? 0 : count < 10 ? 2 : count < 100 ? 1 : 0;
  return count.toFixed(digits) + " " + units[unit];
}

// As Python's three significant digits.
function seconds(count) {
  for (const [unit, factor] of [["s", 1], ["ms", 1e3], ["us", 1e6]]) {
    if (count * factor >= 1 || unit === "us") return +(count * factor).toPrecision(3) + " " + unit;
  }
}

// A moment is chosen on the chart or with the slider; the words and the list below follow.
// of: first, the moment shown at first; words(moment); rows(moment), lists of words, bytes first;
// place(moment), a share of the chart's width, and at(share) back; tick(moment), the slider's value,
// and from(tick) back.
function follow(of) {
  const chart = document.getElementById("chart"), cursor = document.getElementById("cursor");
  const slider = document.getElementById("step"), held = document.getElementById("held");
  const heads = held.closest("table").tHead.rows[0].cells;
  const left = +chart.dataset.left, right = +chart.dataset.right;
  let pinned = of.first;

  function show(moment) {
    const x = left + of.place(moment) * (right - left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    slider.value = of.tick(moment);
    document.getElementById("moment").textContent = of.words(moment);
    held.replaceChildren();
    of.rows(moment).forEach(function (words) {
      const row = held.insertRow();
      words.forEach(function (text, k) {
        const cell = row.insertCell();
        cell.textContent = text;
        cell.dataset.head = heads[k].textContent;
      });
      row.cells[0].className = "number";
    });
  }

  function under(event) {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    return of.at(Math.max(0, Math.min(1, (x - left) / (right - left))));
  }

  chart.addEventListener("pointermove", function (event) { show(under(event)); });
  chart.addEventListener("pointerleave", function () { show(pinned); });
  chart.addEventListener("click", function (event) { pinned = under(event); show(pinned); });
  slider.addEventListener("input", function () { pinned = of.from(+slider.value); show(pinned); });
}

// The same where a moment is a second of data.end.
function followTime(words, rows) {
  function at(share) { return Math.min(0.9999, share) * data.end; }
  follow({
    first: data.at, words: words, rows: rows, at: at,
    place: function (time) { return time / data.end; },
    tick: function (time) { return Math.round(time / data.end * 1000); },
    from: function (tick) { return at(tick / 1000); }
  });
}
