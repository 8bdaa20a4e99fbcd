// An action is [stage, begin, end, name]; alive is, per stage, [[second, count from then on], ...].
function rows(time) {
  return data.ranks.map(function (rank, stage) {
    const own = data.actions.filter(function (a) { return a[0] === stage; });
    const now = own.find(function (a) { return a[1] <= time && time < a[2]; });
    const next = own.find(function (a) { return a[1] > time; });
    let count = 0;
    data.alive[stage].forEach(function (row) { if (row[0] <= time) count = row[1]; });
    return [String(count), String(stage), String(rank), now ? now[3] : "\u2013",
      next ? next[3] : "\u2013"];
  });
}

function words(time) { return (time * data.scale).toFixed(2) + " " + data.unit + "."; }

followTime(words, rows);
