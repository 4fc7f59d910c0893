"""The pages in a real browser: the rollouts page filters 10,000 episodes, and no page is wider than a phone."""

import json
import shutil
import subprocess

import pytest
from made_runs import healthy

from forge_host.report.html import page as report_page
from forge_host.report.rollouts import select
from forge_host.report.rollouts_page import page as rollouts_page
from forge_host.report.rundata import load_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium or Chrome is not installed"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def evaluate(tmp_path, html, script, width=1280):
    """What `script` returns in the page, as JSON."""
    probe = (
        f"<script>{{const answer = (() => {{ {script} }})();"
        "const p = document.createElement('pre'); p.id = 'answer'; p.textContent = JSON.stringify(answer);"
        "document.body.append(p);}</script>"
    )
    file = tmp_path / "page.html"
    file.write_text(html.replace("</body>", probe + "</body>"))
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=300)
    found = done.stdout.partition('<pre id="answer">')[2].partition("</pre>")[0]
    assert found, done.stderr[-2000:]
    return json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_rollouts_filter_without_a_server(make_run, tmp_path):
    run = load_run(make_run(steps=20, episodes=500))
    html = rollouts_page(run, select(run, limit=10_000))
    script = """
        const set = (id, value) => { document.getElementById(id).value = value;
            document.querySelector("form").dispatchEvent(new Event("input")); };
        const count = () => document.getElementById("count").textContent;
        const out = [count()];
        const began = performance.now();
        set("from", "20"); out.push(count());
        set("low", "1"); out.push(count());
        set("part", "math"); out.push(count());
        set("text", "it is 499"); out.push(count());
        out.push(document.querySelector("#list .text").textContent);
        set("text", "no such text"); out.push(count());
        out.push((performance.now() - began) / 5 < 1000);
        return out;"""
    assert evaluate(tmp_path, html, script) == [
        "10000 match, 48 shown", "500 match, 48 shown", "250 match, 48 shown", "250 match, 48 shown",
        "1 match, 1 shown", "it is 499", "0 match, 0 shown", True,
    ]  # fmt: skip


@pytest.mark.parametrize("width", [1280, 500])  # headless Chromium makes no window narrower than 500
def test_nothing_overflows_and_no_chart_is_empty(make_run, tmp_path, width):
    names = ["a-run-with-quite-a-long-name-20260101-101010", "another-run-with-a-long-name-20260101-101011"]
    bad = {"policy/generator_kl": 0.05, "reward/zero_variance_share": 0.9}
    runs = [load_run(make_run(name, metrics=lambda s, n: {**healthy(s, n), **bad})) for name in names]
    script = """
        const wide = [...document.querySelectorAll("body *")].filter((e) => {
            const box = e.getBoundingClientRect();
            return box.width && box.right > document.documentElement.clientWidth + 1 && !e.closest(".scroll, pre, svg");
        }).map((e) => e.tagName + "." + e.className);
        const charts = [...document.querySelectorAll(".chart svg")].filter((e) => e.getBoundingClientRect().width);
        const cards = document.querySelectorAll(".chart").length;
        const sizes = charts.flatMap((svg) => [...svg.querySelectorAll("text")].map(
            (t) => t.getBoundingClientRect().height)).filter((h) => h);
        return [wide, charts.length === cards && cards > 5, Math.min(...sizes) >= 9];"""
    for shown in (runs[:1], runs):
        assert evaluate(tmp_path, report_page(shown), script, width) == [[], True, True]
