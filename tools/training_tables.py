#!/usr/bin/env python3
"""Rewrites the tables of docs/training.md from the metrics of `dualkv train` under docs/results/training/.

  training_tables.py [--check]
  training_tables.py --collect DIR        keeps what is shown of small runs from several seeds: DIR/float1, DIR/exact1
                                          (`dualkv train --compare [--exact] --output DIR/...`) and DIR/check1.jsonl
                                          (`--check-every 1 --json DIR/check1.jsonl`), and so on for seeds 2, 3, ...

A marked block is everything between `<!-- training: NAME -->` and `<!-- end -->`.  --check writes nothing and exits 1
when a block is stale.
"""
import json
import os
import re
import statistics
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(TOP, "docs", "results", "training")
PAGE = os.path.join(TOP, "docs", "training.md")


def read(name, kind):
    """The lines of one kind in a file of metrics."""
    with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["kind"] == kind]


def source(name):
    """Where a file of metrics comes from."""
    run = read(name, "run")[-1]
    return f"{run['device']}, {run['threads']} threads, {run['date'][:10]}, commit {run['commit']}"


def updates():
    """Packed against replicated: the gradient of one step, in turns."""
    rows = ["| N | last layer | rows packed | rows replicated | packed | replicated | times faster | rho | share of rho |",
            "|---|---|---|---|---|---|---|---|---|"]
    for name in ("update_n16.jsonl", "update_n32.jsonl", "update_n16_whole.jsonl", "update_n32_whole.jsonl"):
        check, run = read(name, "self_check")[0], read(name, "run")[0]
        packed, copies = (statistics.median(check[f"{way}_seconds"]) for way in ("packed", "replicated"))
        rho = check["replicated_rows"] / check["packed_rows"]
        layer = "all rows" if run["whole_last_layer"] else "where it predicts"
        rows.append(f"| {run['responses']} | {layer} | {check['packed_rows']} | {check['replicated_rows']} "
                    f"| {packed * 1e3:.1f} ms | {copies * 1e3:.0f} ms | {copies / packed:.2f} | {rho:.2f} "
                    f"| {copies / packed / rho:.2f} |")
    count = len(check["packed_seconds"])
    return rows + ["", f"Medians of {count}, packed and replicated in turns; {source(name)}."]


def torch():
    """The same update in PyTorch."""
    rows = ["| model | layout | rows | C | PyTorch | times faster | C, whole last layer | peak memory C | PyTorch | products |",
            "|---|---|---|---|---|---|---|---|---|---|"]
    with open(os.path.join(RESULTS, os.pardir, "update_against_torch.json"), encoding="utf-8") as file:
        results = json.load(file)["results"]
    for x in results:
        rows.append(f"| {x['shape']}, {x['parameters'] / 1e6:.2g} M | {x['layout']} | {x['rows']} | {x['c_ms']:.1f} ms "
                    f"| {x['torch_ms']:.1f} ms | {x['ratio']:.2f} | {x['c_whole_ms']:.1f} ms | {x['c_peak_mib']:.0f} MiB "
                    f"| {x['torch_peak_mib']:.0f} MiB | {100 * x['c_shares']['products']:.0f} % |")
    origin = sorted({f"{x['cpu']}, {x['threads']} threads, PyTorch {x['torch']}, {x['date']}, commit {x['commit']}"
                     for x in results})
    return rows + ["", f"{'; '.join(origin)}."]


def accuracy(evaluations, step):
    """Sampled accuracy at a step."""
    found = [e for e in evaluations if e["step"] == step]
    return f"{found[0]['sampled']:.3f}" if found else ""


def learning(names, steps):
    """Held-out accuracy of some runs."""
    rows = ["| run | " + " | ".join(f"step {s}" for s in steps) + " | greedy, before and after | pass@4 | seconds of RL |",
            "|---|" + "---|" * (len(steps) + 3)]
    for name in names:
        held_out, run = read(name, "evaluation"), read(name, "run")[-1]
        first, last = held_out[0], held_out[-1]
        cells = " | ".join(accuracy(held_out, s) for s in steps)
        rows.append(f"| {run['task']}, seed {run['seed']} | {cells} | {first['greedy']:.3f}, {last['greedy']:.3f} | "
                    f"{first['pass']:.3f}, {last['pass']:.3f} | {read(name, 'step')[-1]['seconds']:.1f} |")
    return rows + ["", f"{source(names[-1])}."]


def scratch():
    """The seconds of whole runs."""
    rows = ["| run | warm-up | reinforcement learning | largest mismatch of any step | commit |", "|---|---|---|---|---|"]
    for name in ("sort_from_scratch.jsonl", "missing_from_scratch.jsonl"):
        run, steps = read(name, "run")[-1], read(name, "step")
        rows.append(f"| {run['task']}, {len(steps)} steps | {read(name, 'warmup')[-1]['seconds']:.1f} s | "
                    f"{steps[-1]['seconds']:.1f} s | {max(s['mismatch_max'] for s in steps):.1e} | {run['commit']} |")
    return rows + ["", f"Other programs ran on the machine meanwhile: {run['device']}, {run['threads']} threads, "
                       f"{run['date'][:10]}."]


def equality():
    """How long two free-running layouts stay the same."""
    packed, copies = read("layouts_packed.jsonl", "step"), read("layouts_replicated.jsonl", "step")
    same = 0
    while same < len(packed) and packed[same]["reward"] == copies[same]["reward"]:
        same += 1
    gap = max(abs(a["loss"] - b["loss"]) for a, b in zip(packed[:same], copies[:same]))
    final = max(abs(a["accuracy"] - b["accuracy"]) for a, b in zip(packed, copies))
    return [f"In the run of the picture ({len(packed)} steps, N = {read('layouts_packed.jsonl', 'run')[0]['responses']}) the "
            f"rewards of the first {same} steps are equal digit for digit and the losses within {gap:.0e}; the accuracies of a "
            f"step differ by at most {final:.3f} in all of them. {source('layouts_packed.jsonl')}."]


def collect(folder):
    """What is shown of small runs from several seeds, in one file."""
    seeds = []
    folder = os.path.abspath(folder)
    for seed in range(1, 100):
        if not os.path.exists(os.path.join(folder, f"float{seed}", "replicated.jsonl")):
            break
        entry = {"run": read(os.path.join(folder, f"float{seed}", "packed.jsonl"), "run")[0]}
        for kind in ("float", "exact"):
            entry[kind] = {}
            for way in ("packed", "replicated"):
                steps = read(os.path.join(folder, kind + str(seed), way + ".jsonl"), "step")
                entry[kind][way] = {key: [step[key] for step in steps] for key in ("reward", "loss", "grad_norm")}
                entry[kind][way]["sampled"] = [round(x["length"] * x["sampled_groups"] * entry["run"]["responses"]) for x in steps]
        checks = read(os.path.join(folder, f"check{seed}.jsonl"), "self_check")
        entry["same_samples"] = {key: [x[key] for x in checks] for key in ("packed_loss", "replicated_loss", "worst")}
        seeds.append(entry)
    with open(os.path.join(RESULTS, "layouts_small.json"), "w", encoding="utf-8") as file:
        json.dump(seeds, file, indent=None, separators=(",", ":"))
        file.write("\n")


def alike(sides):
    """Steps with equal rewards, and the largest differences of loss and gradient norm in them."""
    a, b = sides["packed"], sides["replicated"]
    same = 0
    while same < len(a["reward"]) and a["reward"][same] == b["reward"][same]:
        same += 1
    loss = max(abs(x - y) for x, y in zip(a["loss"][:same], b["loss"][:same]))
    norm = max(abs(x - y) / x if x > 0 else y for x, y in zip(a["grad_norm"][:same], b["grad_norm"][:same]))
    return same, loss, norm


def shown(difference, digits):
    """A difference of numbers that were kept to some digits."""
    return f"{difference:.0e}" if difference > 0 else f"none in {digits} digits"


def small():
    """For how many steps small runs from the same seed stay equal, in float and in double; and the same samples."""
    with open(os.path.join(RESULTS, "layouts_small.json"), encoding="utf-8") as file:
        runs = json.load(file)
    rows = ["| seed | double: equal rewards | losses | gradient norms | float: equal rewards | losses | "
            "float, same samples: losses | gradients |", "|---|---|---|---|---|---|---|---|"]
    drawn = flips = 0
    for entry in runs:
        same, loss, norm = alike(entry["exact"])
        free, free_loss, _ = alike(entry["float"])
        check = entry["same_samples"]
        gap = max(abs(x - y) for x, y in zip(check["packed_loss"], check["replicated_loss"]))
        total = len(entry["exact"]["packed"]["reward"])
        drawn += sum(entry["float"]["packed"]["sampled"][:free + 1])
        flips += free < total
        rows.append(f"| {entry['run']['seed']} | {same} of {total} | {shown(loss, 9)} | {shown(norm, 12)} | {free} of {total} "
                    f"| {free_loss:.0e} | {gap:.0e} | {max(check['worst']):.0e} |")
    run = runs[0]["run"]
    return rows + ["", f"Float: {flips} flipped tokens among {drawn} that were drawn up to them, {flips / drawn:.0e} of them.  "
                       f"Sorting, {run['groups']} groups of {run['responses']}; {run['device']}, {run['date'][:10]}, "
                       f"commit {run['commit']}."]


BLOCKS = {"small": small, "torch": torch, "updates": updates, "scratch": scratch, "equality": equality,
          "seeds": lambda: learning([f"sort_seed{s}.jsonl" for s in (1, 2, 3)], [0, 20, 40, 60, 80, 100, 120]),
          "missing": lambda: learning(["missing_from_scratch.jsonl"], [0, 40, 80, 120, 160, 200])}


def main():
    if sys.argv[1:2] == ["--collect"]:
        collect(sys.argv[2])
        return 0
    with open(PAGE, encoding="utf-8") as file:
        old = file.read()
    new = re.sub(r"(<!-- training: (\w+) -->\n).*?(<!-- end -->)",
                 lambda m: m.group(1) + "\n".join(BLOCKS[m.group(2)]()) + "\n" + m.group(3), old, flags=re.S)
    if sys.argv[1:] == ["--check"]:
        print("training tables: " + ("current" if new == old else "stale; run tools/training_tables.py"))
        return int(new != old)
    with open(PAGE + ".part", "w", encoding="utf-8") as file:
        file.write(new)
    os.replace(PAGE + ".part", PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
