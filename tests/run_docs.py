#!/usr/bin/env python3
"""Runs the console blocks of the documentation and compares what they print with what the text says they print.

  run_docs.py BUILD [FILE...]        without files: README.md, docs/*.md, tutorials/*.md

In a block fenced as ```console, a line that begins with `$ ` is a command and the lines below it are its output; a line
`...` stands for any number of lines, `...` inside a line for any text.  Commands that install, clone or train (make,
git, pip) are left to CI's own steps.  `build/` in a command means BUILD, and `dualkv` is found there.  The last line is
"N passed, N failed".
"""
import glob
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ELSEWHERE = ("make", "git ", "pip ", "sudo ", "python", "jupyter")


def steps(text):
    """(line number, command, expected lines) of every command of every console block."""
    for block in re.finditer(r"^```console\n(.*?)^```", text, flags=re.S | re.M):
        line = text.count("\n", 0, block.start()) + 2
        command = None
        for content in block.group(1).splitlines():
            if content.startswith("$ "):
                if command:
                    yield command
                command = (line, content[2:], [])
            elif command:
                command[2].append(content)
            line += 1
        if command:
            yield command


def pattern(expected):
    """A regular expression for the output that the text promises."""
    parts = [r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.rstrip().split("..."))) + "\n"
             for line in expected]
    return re.compile("".join(parts))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    files = sys.argv[2:] or [os.path.join(TOP, "README.md"), *sorted(glob.glob(os.path.join(TOP, "docs", "*.md"))),
                             *sorted(glob.glob(os.path.join(TOP, "tutorials", "*.md")))]
    environment = dict(os.environ, OMP_WAIT_POLICY="passive", PATH=build + ":" + os.environ["PATH"])
    passed = failed = 0
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for line, command, expected in steps(text):
            if command.startswith(ELSEWHERE):
                continue
            real = re.sub(r"(?<![\w/])(\./)?build/", build + "/", command)
            run = subprocess.run(real, shell=True, cwd=TOP, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                 timeout=300, env=environment)
            printed = "".join(part.rstrip() + "\n" for part in (run.stdout + run.stderr).splitlines())
            if pattern(expected).fullmatch(printed):
                passed += 1
                continue
            failed += 1
            print(f"{os.path.relpath(path, TOP)}:{line}: $ {command}\nprints (exit code {run.returncode}):\n{printed}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()
