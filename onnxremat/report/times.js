function words(time) {
  const said = [data.known ? seconds(time) : (time / data.end * 100).toFixed(0) + "% of the run"];
  data.streams.forEach(function (stream, k) {
    if (data.alike[stream]) { said.push(data.alike[stream]); return; }
    const now = data.actions.find(function (a) { return a[0] === k && a[1] <= time && time < a[2]; });
    const line = data.lines[k];
    let text = stream + (now ? ": " + now[3] + " (" + now[4] + ")" : " waits");
    if (line) {
      let bytes = 0;
      line.forEach(function (row) { if (row[0] <= time) bytes = row[1]; });
      text += ", holds " + size(bytes);
    }
    said.push(text);
  });
  return said.join(". ") + ".";
}

// A value is [bytes, value, stream, begin, end, producer, [[end, reader], ...]].
function rows(time) {
  const alive = data.values.filter(function (v) { return v[3] <= time && time < v[4]; });
  alive.sort(function (a, b) { return b[0] - a[0]; });
  return alive.slice(0, data.count).map(function (v) {
    const later = v[6].filter(function (r) { return r[0] > time; }).map(function (r) { return r[1]; });
    const more = later.length - data.readers, named = later.slice(0, data.readers);
    if (more > 0) named.push(more + " more");
    return [size(v[0]), v[1], data.streams[v[2]], v[5], named.join(", ") || "\u2013"];
  });
}

followTime(words, rows);
