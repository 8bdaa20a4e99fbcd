const steps = data.totals.length;

// A buffer is [bytes, kind, first, last, [step, value, step, value ...], [step, step, ...]].
function rows(step) {
  const alive = data.buffers.filter(function (b) {
    return b[2] <= step && step <= b[3] && !data.ops[b[4][0]].startsWith("onnxremat.");  // no pins
  });
  alive.sort(function (a, b) { return b[0] - a[0] || a[2] - b[2]; });
  return alive.slice(0, data.count).map(function (b) {
    let at = 0;
    while (at + 2 < b[4].length && b[4][at + 2] <= step) at += 2;
    const begin = b[4][at] === step ? step + 1 : step;
    const readers = Array.from(new Set(b[5].filter(function (s) { return s >= begin; })));
    const named = readers.slice(0, data.readers).map(function (s) { return data.ops[s]; });
    const more = readers.length - data.readers;
    if (more > 0) named.push(more + " more");
    return [size(b[0]), data.values[b[4][at + 1]], data.kinds[b[1]], data.ops[b[4][at]],
      named.join(", ") || "\u2013"];
  });
}

function words(step) {
  return "Step " + (step + 1) + " of " + steps + ": " + data.ops[step] + " (" + data.types[step] +
    "), " + size(data.totals[step] + data.beside) + " in memory, of it " +
    (data.beside ? size(data.beside) + " beside weights and values, " : "") +
    "weights " + size(data.weights) + " and workspace " + size(data.scratch[step]) + ".";
}

if (steps) follow({
  first: data.peak, words: words, rows: rows,
  place: function (step) { return (step + 0.5) / steps; },
  at: function (share) { return Math.min(steps - 1, Math.floor(share * steps)); },
  tick: function (step) { return step + 1; },
  from: function (tick) { return tick - 1; }
});
