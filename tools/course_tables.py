"""The tables of the course's GPU chapters: what was counted beside what was measured.

make_tables.py renders them into tutorials/*.md and hands over what it knows: its records of GPU measurements and its
number formats.  Measurements are found by what they hold, not by the name of their file: every JSON under docs/results
with a list "backward", "rows" or "packed_and_replicated", or with "equal_bits"; of several runs the last.
"""
import glob
import json
import os
import re

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BANDWIDTH, FP32 = 4e12, 60e12  # the machine with round numbers of chapter 08
LADDER = "gpu_bench.json"  # every rung in one run
# rung: rows that share a load, rows of K and V that a loaded key costs (three passes over K and one over V; one of each)
ROWS_OF_KERNEL = {"naive": (1, 4), "warp": (1, 2), "shared": (64, 2)}
NONE = ["No such measurement is committed yet."]


def files():
    """Every object under docs/results, oldest first, with its file's name."""
    found = []
    for path in glob.glob(os.path.join(TOP, "docs", "results", "*.json")):
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if isinstance(data, dict):
            found.append(dict(data, file=os.path.basename(path)))
    return sorted(found, key=lambda d: (d.get("date", ""), d["file"]))


def origin(data):
    return ["", f"Measured on {data['device']}; commit {data['commit']}, {data['date'][:10]}; raw data in `docs/results`: "
            f"`{data['file']}`."]


def keys_loaded(shape, tile):
    """Keys that tiles of `tile` rows of one head load: for a row of a response the prompt, then its own range."""
    n, prompt, length = shape
    total = 0
    for begin in range(0, prompt + n * length, tile):
        end = min(begin + tile, prompt + n * length)
        start = 0 if begin < prompt else prompt + (begin - prompt) // length * length
        total += end - start + (prompt if start else 0)
    return total


def chosen(records, direction, kernels):
    """For each kernel the largest shape in bf16, D = 128, of the run of the whole ladder if it is in that."""
    for kernel in kernels:
        any_run = [r for r in records if (r["direction"], r["kernel"]) == (direction, kernel)]
        any_type = [r for r in any_run if os.path.basename(r["file"]) == LADDER] or any_run
        own = [r for r in any_type if (r["dtype"], r["d"]) == ("bf16", 128)] or any_type
        if own:
            yield max(own, key=lambda r: r["shape"][1] * r["shape"][1] + r["shape"][0] * r["shape"][1] * r["shape"][2])


def first_rungs(tables):
    """Rungs 1 to 3: the bytes that their rows load, what a round machine would need for them, and the measured time."""
    lines = ["| rung | rows that share a load | k and v loaded, GB | ms at 4 TB/s | ms at 60 TFLOP/s | measured ms "
             "| measured / larger of the two | useful TFLOP/s |", "|---|---|---|---|---|---|---|---|"]
    runs = list(chosen(tables.gpu_records(), "forward", ROWS_OF_KERNEL))
    for r in runs:
        tile, rows = ROWS_OF_KERNEL[r["kernel"]]
        loaded = keys_loaded(r["shape"], tile) * rows * r["heads"] * r["d"] * 2
        flops = 4 * r["d"] * tables.pairs(r["shape"]) * r["heads"]
        copying, computing = 1e3 * loaded / BANDWIDTH, 1e3 * flops / FP32
        lines.append(f"| {r['kernel']} | {tile} | {tables.number(loaded * 1e-9)} | {tables.number(copying)} "
                     f"| {tables.number(computing)} | {tables.number(r['ms'])} "
                     f"| {tables.number(r['ms'] / max(copying, computing))} | {tables.number(r['tflops'])} |")
    if not runs:
        return NONE
    shapes = sorted({"N={}, P={}, R={}, {} heads".format(*r["shape"], r["heads"]) for r in runs})
    return [*lines, "", f"{'; '.join(shapes)}, D=128, bf16.", *tables.origins(runs)[1:]]


def rungs_of(tables, direction, kernels):
    runs = list(chosen(tables.gpu_records(), direction, kernels))
    return [*tables.GPU_HEAD, *map(tables.gpu_row, runs), *tables.origins(runs)] if runs else NONE


def tensor_rungs(tables):
    return rungs_of(tables, "forward", ["shared", "mma", "pipeline", "wgmma", "hopper"])


def backward_rungs(tables):
    return rungs_of(tables, "backward", ["naive", "shared", "mma", "wgmma", "hopper", "hopper, deterministic"])


def packed_and_replicated(tables):
    """The same kernel on both layouts; a share above 1: the copies cost more than their pairs."""
    runs = {}
    for data in files():
        for r in data.get("packed_and_replicated", []):
            direction = {"fwd": "forward", "bwd": "backward"}.get(r["direction"], r["direction"])
            runs[direction, r["kernel"], (r["N"], r["P"], r["R"])] = (r["packed_ms"], r["replicated_ms"], data)
    for r in tables.gpu_records():
        if r["replicated_ms"] and r["kernel"] == "hopper" and r["d"] == 128 and r["dtype"] == "bf16":
            runs[r["direction"], r["kernel"], r["shape"]] = (r["ms"], r["replicated_ms"], r)
    if not runs:
        return NONE
    lines = ["| direction | kernel | N, P, R | packed ms | replicated ms | ratio | A | ratio / A |",
             "|---|---|---|---|---|---|---|---|"]
    for (direction, kernel, shape), (packed, copies, _) in sorted(
            runs.items(), key=lambda item: (item[0][0] == "backward", item[0][1], tables.pairs(item[0][2]))):
        a = tables.pair_ratio(shape)
        lines.append(f"| {direction} | {kernel} | {', '.join(map(str, shape))} | {tables.number(packed)} "
                     f"| {tables.number(copies)} | {tables.number(copies / packed)} | {tables.number(a)} "
                     f"| {tables.number(copies / packed / a)} |")
    return [*lines, *tables.origins([data for _, _, data in runs.values()])]


def determinism(tables):
    """The default and the deterministic mode of the Hopper backward, timed in one run."""
    found = {}
    for data in files():
        times = {}
        for r in data.get("backward", []) + data.get("rows", []):
            if not isinstance(r, dict) or r.get("dtype") != "bf16" or r.get("head_dim") != 128:
                continue
            default = r["kernel"] == "hopper" and not r["deterministic"]
            if default or (r["deterministic"] and r["kernel"].startswith("hopper")):
                times.setdefault(r["shape"], {})[r["deterministic"]] = r["ms"]
        found.update({shape: (t[False], t[True], data) for shape, t in times.items() if len(t) == 2})
    bench = {}
    for run in tables.measurements():
        packed = run["packed"].get("backward_ms")
        s = run["shape"]
        if run["backend"] == "gpu" and packed and run["kernels"]["backward"] == "hopper" and (
                s["head_dim"], s["dtype"], len(set(s["segment_length"][1:]))) == (128, "bf16", 1):
            shape = f"{s['responses']},{s['prompt']},{s['segment_length'][1]}"
            bench.setdefault(shape, {})[bool(run.get("deterministic"))] = (packed["median"], run)
    found.update({shape: (t[False][0], t[True][0], t[True][1]) for shape, t in bench.items() if len(t) == 2})
    if not found:
        return NONE
    lines = ["| N, P, R | as they come, ms | in turns, ms | price of equal bits |", "|---|---|---|---|"]
    order = lambda shape: tables.pairs(tuple(map(int, shape.split(",")))) if re.fullmatch(r"\d+,\d+,\d+", shape) else 0
    for shape in sorted(found, key=lambda s: (order(s), s)):
        free, turns, _ = found[shape]
        name = ", ".join(shape.split(",")) if order(shape) else shape.replace(",", " lengths, P = ")
        lines.append(f"| {name} | {tables.number(free)} | {tables.number(turns)} | {100 * (turns / free - 1):.0f} % |")
    return [*lines, *tables.origins([data for _, _, data in found.values()])]


def equal_bits(_):
    """How many of twenty runs of one call gave other bits than the first."""
    runs = {}
    for data in files():
        for kernel, sentences in data.get("equal_bits", {}).items():
            for sentence in sentences:
                match = re.search(r"bits (fwd|bwd) \w+(, deterministic)?: (\d+) of (\d+) runs differ", sentence)
                if match:
                    way = kernel + (", in turns" if match.group(2) else "")
                    runs[match.group(1), way] = (match.group(3), match.group(4), data)
    if not runs:
        return NONE
    lines = ["| direction | kernel | runs with other bits |", "|---|---|---|"]
    for (direction, kernel), (differ, count, _) in sorted(runs.items(), key=lambda r: (r[0][0] == "bwd", len(r[0][1]), r[0][1])):
        lines.append(f"| {'forward' if direction == 'fwd' else 'backward'} | {kernel} | {differ} of {count} |")
    return [*lines, *origin(max((data for _, _, data in runs.values()), key=lambda d: (d["date"], d["file"])))]


def peer_records():
    """(what was measured, [(N, P, R), kernel, in copies or not, forward ms, backward ms]): ours and others in one run."""
    names = {"flex_packed": "FlexAttention, packed mask", "sdpa_cudnn_replicated": "cuDNN, replicated"}
    data = next((d for d in reversed(files()) if d.get("peers")), None)
    if data is None:
        return None, []
    rows = []
    for shape in sorted({(r["N"], r["P"], r["R"]) for r in data["peers"]}):
        of_shape = {"shape": "%d,%d,%d" % shape, "kernel": "hopper", "dtype": "bf16"}
        settled = [r["ms"] for part in ("forward", "backward") for r in data[part]
                   if of_shape.items() <= r.items() and r.get("D", r.get("head_dim")) == 128]
        copies = [r["replicated_ms"] for r in data["packed_and_replicated"]
                  if (r["N"], r["P"], r["R"], r["kernel"]) == (*shape, "hopper")]
        if len(settled) == 2 and len(copies) == 2:
            rows += [(shape, "hopper, packed", False, *settled), (shape, "hopper, replicated", True, *copies)]
        rows += [(shape, names.get(r["method"], r["method"]), "replicated" in r["method"], r["fwd_ms"], r["bwd_ms"])
                 for r in data["peers"] if (r["N"], r["P"], r["R"]) == shape]
    return data, rows


def peers(tables):
    """Forward and backward of one group, of this project's kernels and of others."""
    data, rows = peer_records()
    if data is None:
        return NONE
    lines = ["| N, P, R | kernel | forward ms | backward ms | together |", "|---|---|---|---|---|"]
    for shape, name, _, forward, backward in rows:
        lines.append(f"| {', '.join(map(str, shape))} | {name} | {tables.number(forward)} | {tables.number(backward)} "
                     f"| {tables.number(forward + backward)} |")
    product = data.get("cublas_8192_bf16_tflops")
    known = f" An 8192^3 product of cuBLAS in the same run: {product} TFLOP/s." if product else ""
    return [*lines, *origin(data)[:-1], origin(data)[-1] + known]


TABLES = {table.__name__: table for table in (first_rungs, tensor_rungs, backward_rungs, packed_and_replicated,
                                              determinism, equal_bits, peers)}
