// Opens a page of `onnxremat report`, or of `simulate -o page.html`, in a headless Chromium: rendered,
// pointed at, clicked, in the dark, on a phone, printed. Fails on a script error, a request, or a list
// that does not follow.
//
//   npm install --no-save puppeteer-core
//   CHROMIUM=/usr/bin/chromium node tools/page_in_browser.js report.html pictures/
//
// Without CHROMIUM it takes that of the package @sparticuz/chromium.

"use strict";
const assert = require("node:assert/strict");
const path = require("node:path");
const puppeteer = require("puppeteer-core");

const [file, pictures] = process.argv.slice(2).map((name) => path.resolve(name));
require("node:fs").mkdirSync(pictures, { recursive: true });
const DESK = { width: 1100, height: 900 };
const PHONE = { width: 390, height: 800, isMobile: true, hasTouch: true };

async function browserHere() {
  const args = ["--no-sandbox"];
  if (process.env.CHROMIUM) return { args, executablePath: process.env.CHROMIUM, headless: true };
  const chromium = require("@sparticuz/chromium");
  args.push(...chromium.args);
  return { args, executablePath: await chromium.executablePath(), headless: "shell" };
}

async function look(page) {
  const texts = await page.$$eval("#moment, #held", (found) => found.map((e) => e.innerText));
  return { moment: texts[0], held: texts[1] };
}

async function main() {
  const browser = await puppeteer.launch(await browserHere());
  const page = await browser.newPage();
  const said = [], asked = [];
  page.on("pageerror", (error) => said.push(String(error)));
  page.on("console", (message) => said.push(message.text()));
  page.on("request", (request) => asked.push(request.url()));

  await page.setViewport(DESK);
  await page.goto(`file://${file}`);
  await page.screenshot({ path: path.join(pictures, "desk.png"), fullPage: true });
  const written = await look(page);

  await page.$eval("#chart", (chart) => chart.scrollIntoView());
  const box = await (await page.$("#chart")).boundingBox();
  const at = (share) => [box.x + box.width * share, box.y + box.height / 2];
  const early = await page.$eval("#step", (slider) => slider.value < slider.max / 2);
  await page.mouse.move(...at(early ? 0.95 : 0.15));
  const pointed = await look(page);
  assert.notEqual(pointed.moment, written.moment, "pointing shows another moment");
  assert.notEqual(pointed.held, written.held);
  await page.mouse.move(box.x + 5, box.y + box.height + 150);
  assert.deepEqual(await look(page), written, "and the script lists what was written before it");

  await page.mouse.click(...at(0.5));
  const clicked = await look(page);
  await page.mouse.move(box.x + 5, box.y + box.height + 150);
  assert.deepEqual(await look(page), clicked, "a click stays");
  await page.$eval("#step", (slider) => {
    slider.value = slider.min;
    slider.dispatchEvent(new Event("input"));
  });
  assert.match((await look(page)).moment, /^(Step 1 of |0(\.0+)? ?(s|ms|us|%))/);

  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
  await page.screenshot({ path: path.join(pictures, "dark.png"), fullPage: true });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);

  await page.setViewport(PHONE);
  await page.reload();
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= PHONE.width, `a phone shows ${width} of ${PHONE.width} pixels`);
  await page.screenshot({ path: path.join(pictures, "phone.png"), fullPage: true });
  await page.setViewport(DESK);
  await page.pdf({ path: path.join(pictures, "print.pdf"), format: "A4", printBackground: true });
  assert.deepEqual(said, [], "no script says anything");
  assert.deepEqual(new Set(asked), new Set([`file://${file}`]), "nothing is loaded");
  console.log(`passed in ${await browser.version()}`);
  await browser.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
