#!/usr/bin/env python3
"""Rewrites the tables between markers in README.md, docs/*.md and tutorials/*.md from what was measured and registered.

  make_tables.py [--check] [--program build/dualkv]

A marked block is everything between `<!-- table: NAME -->` and `<!-- end -->`.  Measurements are the JSON under
docs/results/: of `dualkv bench --json` (schema dualkv.bench.1), one object a file or a list of them, and of the GPU
drivers in tests/gpu (gpu_ladder.json, forward_hopper.json, backward_hopper.json, gpu_final.json).  The table of rungs
and the line "Measured" of each rung's file come from gpu_bench.json alone, one run of the whole ladder.  Kernels are
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

import course_tables

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
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 1 else f"{x:.3g}"


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
    """A sentence for every device, commit and day that the rows come from, with the files of the raw data."""
    files = {}
    for run in runs:
        key = f"{run['device']}; commit {run['commit']}, {run['date'][:10]}"
        files.setdefault(key, {})[os.path.basename(run["file"])] = None
    links = {key: ", ".join(f"`{name}`" for name in names) for key, names in files.items()}
    return ["", *[f"Measured on {key}; raw data in `docs/results`: {names}." for key, names in links.items()]]


def bench_table(backend):
    runs = [r for r in measurements() if r["backend"] == backend]
    if not runs:
        return [f"No measurement of the {backend} backend is committed yet."]
    return [*bench_rows(runs, backend == "gpu"), *origins(runs)]


def load(name):
    path = os.path.join(TOP, "docs", "results", name)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def beside_another(run, direction):
    """Was this direction's kernel only there to go with the rung that the run is about (the default backward with "warp")?"""
    other = "backward" if direction == "forward" else "forward"
    name = run["kernels"][direction]
    return name != run["kernels"][other] and (other, name) in {(d, k) for d, k, _ in gpu_kernels()}


def gpu_records():
    """What was measured on a GPU, whatever wrote it, in one form; of several runs of one thing the last."""
    found = {}

    def add(data, name, direction, kernel, shape, d, dtype, ms, replicated=None, commit=None, heads=32):
        if isinstance(shape, str):  # "N,P,R"; others are ragged, and are shown by the worklog that measured them
            if not re.fullmatch(r"\d+,\d+,\d+", shape):
                return
            shape = tuple(map(int, shape.split(",")))
        key = (direction, kernel, shape, d, dtype)
        found.pop(key, None)
        flops = (4 if direction == "forward" else 10) * d * heads * pairs(shape)  # a file's own figure may be rounded
        found[key] = {"direction": direction, "kernel": kernel, "shape": shape, "d": d, "dtype": dtype, "ms": ms,
                      "tflops": flops * 1e-9 / ms, "replicated_ms": replicated, "heads": heads, "device": data["device"],
                      "commit": commit or data["commit"], "date": data["date"], "file": name}

    ladder, forward, backward = load("gpu_ladder.json"), load("forward_hopper.json"), load("backward_hopper.json")
    for r in ladder.get("runs", []):
        add(ladder, "gpu_ladder.json", "forward" if r["direction"] == "fwd" else "backward", r["kernel"],
            (r["N"], r["P"], r["R"]), r["D"], r["dtype"], r["packed_ms"], r.get("replicated_ms"),
            r.get("commit"), r["H"])
    for run in measurements():
        s = run["shape"]
        if run["backend"] != "gpu" or len(set(s["segment_length"][1:])) != 1:
            continue
        for direction in ("forward", "backward"):
            if beside_another(run, direction):
                continue
            packed, copies = side(run, "packed", direction), side(run, "replicated", direction)
            turns = ", deterministic" if direction == "backward" and run.get("deterministic") else ""
            add(run, run["file"], direction, run["kernels"][direction] + turns,
                (s["responses"], s["prompt"], s["segment_length"][1]), s["head_dim"], s["dtype"], packed["median"],
                copies and copies["median"], heads=s["heads"])
    # The Hopper drivers hold the card at its power limit, as training does; they come last, so they win, and last of
    # all the run that timed both directions beside the peers.
    final = load("gpu_final.json")
    for data, name, runs in ((forward, "forward_hopper.json", "runs"), (final, "gpu_final.json", "forward")):
        for r in data.get(runs, []):
            add(data, name, "forward", r["kernel"], r["shape"], r["D"], r["dtype"], r["ms"])
    for data, name, runs in ((backward, "backward_hopper.json", "rows"), (final, "gpu_final.json", "backward")):
        for r in data.get(runs, []):
            kernel = r["kernel"] + (", deterministic" if r.get("deterministic") else "")
            add(data, name, "backward", kernel, r["shape"], r["head_dim"], r["dtype"], r["ms"])
    return list(found.values())


def pairs(shape):
    n, p, r = shape
    return p * (p + 1) // 2 + n * (r * p + r * (r + 1) // 2)


def pair_ratio(shape):
    n, p, r = shape
    return n * (p + r) * (p + r + 1) // 2 / pairs(shape)


def gpu_row(r):
    copies = r["replicated_ms"]
    n, p, length = r["shape"]
    return (f"| {r['direction']} | {r['kernel']} | {n}, {p}, {length} | {r['d']}, {r['dtype']} | {number(r['ms'])} "
            f"| {number(copies) if copies else '-'} | {number(copies / r['ms']) if copies else '-'} "
            f"| {number(pair_ratio(r['shape']))} | {number(r['tflops'])} |")


GPU_HEAD = ["| direction | kernel | N, P, R | D, type | packed ms | replicated ms | ratio | A | TFLOP/s |",
            "|---|---|---|---|---|---|---|---|---|"]


def gpu_table():
    records = sorted(gpu_records(),
                     key=lambda r: (r["direction"] == "backward", r["kernel"], -r["d"], r["dtype"], pairs(r["shape"])))
    if not records:
        return ["No measurement of the gpu backend is committed yet."]
    return [*GPU_HEAD, *map(gpu_row, records), *origins(records)]


def gpu_headline():
    """The fastest kernels on the largest shape that both directions were measured on."""
    records = [r for r in gpu_records() if r["dtype"] == "bf16" and "," not in r["kernel"]]
    by = {d: {} for d in ("forward", "backward")}
    for r in records:
        key = (pairs(r["shape"]) * r["d"], r["shape"], r["d"])
        if key not in by[r["direction"]] or r["ms"] < by[r["direction"]][key]["ms"]:
            by[r["direction"]][key] = r
    common = set(by["forward"]) & set(by["backward"])
    if not common:
        return []
    forward, backward = by["forward"][max(common)], by["backward"][max(common)]
    n, p, length = forward["shape"]
    return [f"On one {forward['device']}, {n} responses of {length} tokens to a prompt of {p}, bf16, H=32, Hkv=8, "
            f"D={forward['d']}: forward {number(forward['ms'])} ms (**{number(forward['tflops'])} useful TFLOP/s**), "
            f"backward {number(backward['ms'])} ms (**{number(backward['tflops'])}**), {forward['date'][:10]}."]


def headline():
    """An honest line of results for each backend, with its shape, and where nothing is saved."""
    lines = gpu_headline()
    runs = [r for r in measurements() if r["backend"] == "cpu" and side(r, "replicated", "forward")]
    if runs:
        run = max(runs, key=lambda r: (r["packed"]["pairs"] * r["shape"]["head_dim"], r["shape"]["dtype"] == "f32"))
        s = run["shape"]
        copies, packed = (sum(side(run, name, d)["median"] for d in ("forward", "backward"))
                          for name in ("replicated", "packed"))
        lines.append(f"On a CPU ({run['device'].split(',')[0]}, {run['threads']} threads), {s['responses']} responses of "
                     f"{s['segment_length'][1]} tokens to a prompt of {s['prompt']}: forward and backward in "
                     f"{number(packed)} ms instead of {number(copies)} ms for the same kernels on copies, "
                     f"**{copies / packed:.1f} times less** ({run['A']:.1f} predicted), {run['date'][:10]}.")
    lines.append("With one response per prompt there is nothing to share and nothing is saved.")
    return ["- " + line for line in lines]


LADDER = "gpu_bench.json"  # every rung in one run: what tests/run_gpu.sh writes


def ladder_runs():
    """For each GPU kernel in the order of kernels.def: direction, name, source file, its run on its largest shape."""
    runs = [r for r in measurements() if os.path.basename(r["file"]) == LADDER and not r.get("deterministic")]
    for direction, name, path in gpu_kernels():
        own = [r for r in runs if r["kernels"][direction] == name and not beside_another(r, direction)]
        yield direction, name, path, max(own, key=lambda r: r["packed"]["pairs"], default=None)


def rungs():
    """The GPU's kernels in the order of kernels.def, all from one run, with the matrix product of the same rounds."""
    chosen = [(d, name, run) for d, name, _, run in ladder_runs() if run]
    if not chosen:
        return [f"docs/results/{LADDER} is not committed yet."]
    rows = ["| direction | kernel | N, P, R | H, Hkv, D, type | packed ms | replicated ms | ratio | A | TFLOP/s "
            "| cuBLAS | share |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for direction, name, run in chosen:
        s, packed, copies = run["shape"], side(run, "packed", direction), side(run, "replicated", direction)
        rows.append(f"| {direction} | {name} | {s['responses']}, {s['prompt']}, {s['segment_length'][1]} "
                    f"| {s['heads']}, {s['kv_heads']}, {s['head_dim']}, {s['dtype']} | {number(packed['median'])} "
                    f"| {number(copies['median']) if copies else '-'} "
                    f"| {number(copies['median'] / packed['median']) if copies else '-'} | {number(run['A'])} "
                    f"| {number(packed['useful_gflops'] * 1e-3)} | {number(run['matmul_gflops'] * 1e-3)} "
                    f"| {100 * packed['share_of_matmul']:.3g} % |")
    return [*rows, *origins([run for _, _, run in chosen])]


MEASURED = re.compile(r"^( \* Measured[: ] +)[\d.]+ TFLOP/s at N = .*$", re.M)


def measured_lines():
    """(path, old text, new text) of each rung's source, whose header says what this rung reached in that run."""
    for direction, name, path, run in ladder_runs():
        if run is None:
            continue
        with open(os.path.join(TOP, path), encoding="utf-8") as file:
            old = file.read()
        s = run["shape"]
        line = (f"{number(side(run, 'packed', direction)['useful_gflops'] * 1e-3)} TFLOP/s at N = {s['responses']}, "
                f"P = {s['prompt']}, R = {s['segment_length'][1]}, H = {s['heads']}/{s['kv_heads']}, "
                f"D = {s['head_dim']}, {s['dtype']} "
                f"({run['device'].split(',')[0].removeprefix('NVIDIA ')}, {run['date'][:10]})")
        new, found = MEASURED.subn(lambda match, line=line: match.group(1) + line, old)
        if found != 1:
            sys.exit(f"{path}: {found} lines say what the rung measured; its header needs one like\n * Measured   {line}")
        yield path, old, new


def gpu_kernels():
    """Direction, name and source file of each GPU kernel, in the order of kernels.def."""
    with open(os.path.join(TOP, "common", "kernels.def"), encoding="utf-8") as file:
        lines = re.findall(r'DKV_KERNEL\((\w+), (\w+), (\w+),\s*"([^"]+)"', file.read())
    return [("forward" if d == "fwd" else "backward", name, path) for backend, d, name, path in lines if backend == "gpu"]


def kernels(program):
    listed = subprocess.run([program, "kernels", "--markdown"], check=True, capture_output=True, text=True)
    return listed.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default=os.path.join(TOP, "build", "dualkv"))
    options = parser.parse_args()
    tables = {"cpu": lambda: bench_table("cpu"), "gpu": gpu_table, "headline": headline,
              "rungs": rungs, "kernels": lambda: kernels(options.program)}
    for name, table in course_tables.TABLES.items():
        tables[name] = lambda table=table: table(sys.modules[__name__])
    stale, headers = [], list(measured_lines())
    pages = [path for folder in ("docs", "tutorials") for path in sorted(glob.glob(os.path.join(TOP, folder, "*.md")))]
    for path in [os.path.join(TOP, "README.md"), *pages]:
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
    for path, old, new in headers:
        if new != old:
            stale.append(path)
            if not options.check:
                with open(os.path.join(TOP, path), "w", encoding="utf-8") as file:
                    file.write(new)
    if options.check and stale:
        sys.exit(f"stale tables in {', '.join(stale)}; make tables rewrites them")
    print("tables: " + (f"rewrote {', '.join(stale)}" if stale else "current"))


if __name__ == "__main__":
    main()
