#!/usr/bin/env python3
"""Runs the console blocks of Markdown files and compares what they print with what the page says.

    ```console
    $ dualkv cost --prompt 4096 --responses 16 --response-length 512
    ...
    rho ...
    ```

A line that starts with "$ " is a command (a trailing backslash continues it); what follows, up to the next command, is what
it must print.  A line "..." stands for any number of lines, "..." inside a line for any text: for times and other figures that
differ from machine to machine.  Commands run in the project's root, with the build folder first on PATH, one block after another
in one scratch shell environment; $OUT names an empty folder that is removed afterwards.

The word after ```console says when not to run a block:  setup (installs things),  gpu (only where `dualkv kernels` shows a GPU).

  run_console.py [--build DIR] [--update] FILE...     exit code 1 when a block prints something else
  --update rewrites the pages with what the commands print, keeping lines that a pattern already matches.
"""
import argparse, os, re, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def line_matches(pattern, line):
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("...")), line) is not None


def matches(want, got):
    """Do the expected lines, in which "..." alone is any number of lines, match?"""
    if not want:
        return not got
    if want[0].strip() == "...":
        return any(matches(want[1:], got[i:]) for i in range(len(got) + 1))
    return bool(got) and line_matches(want[0], got[0]) and matches(want[1:], got[1:])


def split(block):
    """A block's lines as [(command, expected lines)]."""
    steps, continued = [], False
    for line in block:
        if continued:
            steps[-1][0] += "\n" + line
        elif line.startswith("$ "):
            steps.append([line[2:], []])
        elif steps:
            steps[-1][1].append(line)
        else:
            raise SystemExit("a console block must begin with a command, not with: " + line)
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    return steps


def run(command, env):
    command = re.sub(r"(?<![\w/])(\./)?build/dualkv\b", "dualkv", command)  # the build may lie elsewhere
    command = re.sub(r"(?<![\w/])(\./)?build/tests/", "$BUILD/tests/", command)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=600)
    return [line.rstrip() for line in done.stdout.decode().rstrip("\n").split("\n")] if done.stdout.strip() else []


def page(path, env, update, gpu):
    """Runs one page; returns (blocks run, failures)."""
    lines, out, ran, failed, i = open(path).read().split("\n"), [], 0, 0, 0
    while i < len(lines):
        out.append(lines[i])
        opened = re.fullmatch(r"(\s*)```console(?: (\w+))?", lines[i])
        i += 1
        if not opened:
            continue
        end = lines.index(opened.group(1) + "```", i)
        block, when, start = [l.rstrip() for l in lines[i:end]], opened.group(2), i
        i = end
        if when == "setup" or (when == "gpu" and not gpu):
            out += block
            continue
        ran += 1
        for command, want in split(block):
            got = run(command, env)
            good = matches(want, got)
            out += ["$ " + command] + (want if good or not update else got)
            if not good and not update:
                failed += 1
                print("%s:%d: %s\n  expected: %s\n  printed:  %s" % (path, start, command, "\n            ".join(want),
                                                                    "\n            ".join(got)))
    if update:
        open(path + ".new", "w").write("\n".join(out))
        os.replace(path + ".new", path)
    return ran, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("files", nargs="+")
    a = parser.parse_args()
    scratch = tempfile.mkdtemp()
    build = os.path.join(ROOT, a.build)
    env = dict(os.environ, PATH=build + ":" + os.environ["PATH"], BUILD=build, OUT=scratch, NO_COLOR="1", COLUMNS="100")
    gpu = any("gpu" in l and "yes" in l for l in run("dualkv kernels", env))
    passed = failed = 0
    for path in a.files:
        ran, bad = page(path, env, a.update, gpu)
        passed, failed = passed + ran - min(ran, bad), failed + bad
    shutil.rmtree(scratch)
    print("console blocks: %d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


sys.exit(main())
