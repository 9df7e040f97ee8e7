#!/usr/bin/env python3
"""Rewrites the tables between markers in README.md and docs/*.md from what was measured and what is registered.

  make_tables.py [--check] [--program build/dualkv]

A marked block is everything between `<!-- table: NAME -->` and `<!-- end -->`.  Measurements are the JSON of
`dualkv bench --json` (schema dualkv.bench.1) under docs/results/: one object a file, or a list of them.  Kernels are
those of common/kernels.def, as `dualkv kernels --markdown` prints them.  --check writes nothing and exits 1 when a
block is stale.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def measurements():
    """All bench results, with the file that each came from, in the order of files and of lists."""
    found = []
    for path in sorted(glob.glob(os.path.join(TOP, "docs", "results", "*.json"))):
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        for run in data if isinstance(data, list) else data.get("runs", [data]):
            if isinstance(run, dict) and run.get("schema") == "dualkv.bench.1":
                found.append(dict(run, file=os.path.relpath(path, TOP)))
    return found


def shape_text(run):
    """P, responses and their lengths, in few words."""
    s = run["shape"]
    lengths = s["segment_length"][1:]
    if s["segment_parent"].count(-1) != 1 or not lengths:
        return f"{s['segments']} segments, {run['packed']['rows']} rows"
    if len(set(lengths)) == 1:
        return f"P={s['prompt']}, {len(lengths)} x {lengths[0]}"
    return f"P={s['prompt']}, {len(lengths)} of {min(lengths)} to {max(lengths)}"


def number(x):
    """Three significant figures, no exponent."""
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}"


def side(run, name, direction):
    return run[name].get(direction + "_ms")


def bench_rows(runs, gpu):
    unit = 1e-3 if gpu else 1.0
    yield ("| shape | H, Hkv, D, type | kernel | packed ms | replicated ms | ratio | A | "
           + ("TFLOP/s" if gpu else "GFLOP/s") + " | share of matrix product |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for run in runs:
        s = run["shape"]
        for direction in ("forward", "backward"):
            packed, copies = side(run, "packed", direction), side(run, "replicated", direction)
            yield (f"| {shape_text(run)} | {s['heads']}, {s['kv_heads']}, {s['head_dim']}, {s['dtype']} "
                   f"| {direction} {run['kernels'][direction]}{', deterministic' if run.get('deterministic') else ''} "
                   f"| {number(packed['median'])} | {number(copies['median']) if copies else '-'} "
                   f"| {number(copies['median'] / packed['median']) if copies else '-'} | {number(run['A'])} "
                   f"| {number(packed['useful_gflops'] * unit)} | {100 * packed['share_of_matmul']:.0f} % |")


def origins(runs):
    """One line for every device, commit and day that the rows come from."""
    seen = []
    for run in runs:
        line = f"{run['device']}; commit {run['commit']}, {run['date'][:10]}; raw data: {run['file']}"
        if line not in seen:
            seen.append(line)
    return ["", *[f"Measured on {line}." for line in seen]]


def bench_table(backend):
    runs = [r for r in measurements() if r["backend"] == backend]
    if not runs:
        return [f"No measurement of the {backend} backend is committed yet."]
    return [*bench_rows(runs, backend == "gpu"), *origins(runs)]


def headline():
    """An honest line of results for each backend, with its shape, and where nothing is saved."""
    lines = []
    for backend in ("gpu", "cpu"):
        runs = [r for r in measurements() if r["backend"] == backend and side(r, "replicated", "forward")]
        if not runs:
            continue
        run = max(runs, key=lambda r: r["A"] if backend == "cpu" else r["packed"]["pairs"])
        total = [sum(side(run, name, d)["median"] for d in ("forward", "backward"))
                 for name in ("replicated", "packed")]
        lines.append(f"**{total[0] / total[1]:.1f} times** less time for attention, forward and backward, than the "
                     f"same kernels on copies ({shape_text(run)} tokens, {run['shape']['dtype']}; {number(total[1])} ms "
                     f"instead of {number(total[0])} ms; predicted {run['A']:.1f}) on {run['device'].split(',')[0]}, "
                     f"{run['date'][:10]}.")
    lines.append("With one response per prompt there is nothing to share and nothing is saved.")
    return lines


def rungs():
    """The GPU's kernels in the order of kernels.def, with the largest shape that each was measured on."""
    runs = [r for r in measurements() if r["backend"] == "gpu"]
    best = {}
    for run in sorted(runs, key=lambda r: r["packed"]["pairs"]):
        for direction in ("forward", "backward"):
            key = (direction, run["kernels"][direction], bool(run.get("deterministic")) and direction == "backward")
            best[key] = (run, side(run, "packed", direction))
    if not best:
        return ["No measurement of the gpu backend is committed yet."]
    out = ["| direction | kernel | shape | type | ms | TFLOP/s | share of matrix product |",
           "|---|---|---|---|---|---|---|"]
    for direction, kernel in kernel_order():
        for deterministic in (False, True):
            if (direction, kernel, deterministic) in best:
                run, times = best[direction, kernel, deterministic]
                out.append(f"| {direction} | {kernel}{', deterministic' if deterministic else ''} | {shape_text(run)} "
                           f"| {run['shape']['dtype']} | {number(times['median'])} "
                           f"| {number(times['useful_gflops'] * 1e-3)} | {100 * times['share_of_matmul']:.1f} % |")
    return out + origins([run for run, _ in best.values()])


def kernel_order():
    with open(os.path.join(TOP, "common", "kernels.def"), encoding="utf-8") as file:
        lines = re.findall(r"DKV_KERNEL\((\w+), (\w+), (\w+),", file.read())
    return [("forward" if d == "fwd" else "backward", name) for backend, d, name in lines if backend == "gpu"]


def kernels(program):
    listed = subprocess.run([program, "kernels", "--markdown"], check=True, capture_output=True, text=True)
    return listed.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default=os.path.join(TOP, "build", "dualkv"))
    options = parser.parse_args()
    tables = {"cpu": lambda: bench_table("cpu"), "gpu": lambda: bench_table("gpu"), "headline": headline,
              "rungs": rungs, "kernels": lambda: kernels(options.program)}
    stale = []
    for path in [os.path.join(TOP, "README.md"), *sorted(glob.glob(os.path.join(TOP, "docs", "*.md")))]:
        with open(path, encoding="utf-8") as file:
            old = file.read()

        def block(match):
            name = match.group(1)
            if name not in tables:
                sys.exit(f"{path}: there is no table named {name}; there are {', '.join(sorted(tables))}")
            return f"<!-- table: {name} -->\n" + "\n".join(tables[name]()) + "\n<!-- end -->"

        new = re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", block, old, flags=re.S)
        if new != old:
            stale.append(os.path.relpath(path, TOP))
            if not options.check:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(new)
    if options.check and stale:
        sys.exit(f"stale tables in {', '.join(stale)}; make tables rewrites them")
    print("tables: " + (f"rewrote {', '.join(stale)}" if stale else "current"))


if __name__ == "__main__":
    main()
