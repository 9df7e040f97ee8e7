#!/usr/bin/env python3
"""Judges the judges of the exercises once more: does each notice a number that is typed in where a parameter stands?

  freeze_parameters.py BUILD

For each scalar parameter of each solution it makes a wrong answer that keeps the value of the first call for ever.  A judge that lets it
pass never varies that parameter.  Run by tests/run_exercises.sh.
"""
import concurrent.futures, glob, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = re.compile(r"^(?!static)[\w ]+\*?\s*student_\w+\(([^)]*)\)\s*\{\n", re.M)
SCALAR = re.compile(r"\s*(int|int32_t|int64_t|double|float)\s+(\w+)\s*$")


def frozen(source):
    """(name of a parameter, the solution that keeps its first value) for each one."""
    for head in HEAD.finditer(source):
        for parameter in head.group(1).split(","):
            match = SCALAR.match(parameter)
            if match:
                kept = "  static int seen_;\n  static %s first_;\n  if (!seen_) first_ = %s, seen_ = 1;\n  %s = first_;\n" % (
                    match.group(1), match.group(2), match.group(2))
                yield match.group(2), source[:head.end()] + kept + source[head.end():]


def passes(build, name, source, folder, number):
    """Does the judge take this answer for right?"""
    path = os.path.join(folder, "%s_%d" % (name, number))
    with open(path + ".c", "w", encoding="utf-8") as file:
        file.write(source)
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-I" + ROOT, "-fopenmp", path + ".c",
                    os.path.join(ROOT, "tutorials", "judges", name + ".c"), "-o", path, "-L" + build, "-ldualkv", "-lm",
                    "-Wl,-rpath," + build], check=True)
    try:
        return subprocess.run([path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    build = os.path.abspath(sys.argv[1])
    tries = []
    for path in sorted(glob.glob(os.path.join(ROOT, "tutorials", "solutions", "*.c"))):
        with open(path, encoding="utf-8") as file:
            tries += [(os.path.basename(path)[:-2], *one) for one in frozen(file.read())]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        runs = [pool.submit(passes, build, name, source, folder, n) for n, (name, _, source) in enumerate(tries)]
        unnoticed = ["%s: %s may be typed in, the judge never varies it" % (name, parameter)
                     for (name, parameter, _), run in zip(tries, runs) if run.result()]
    print("\n".join(["FAIL " + line for line in unnoticed] +
                    ["frozen parameters: %d passed, %d failed" % (len(tries) - len(unnoticed), len(unnoticed))]))
    return 1 if unnoticed or not tries else 0


if __name__ == "__main__":
    sys.exit(main())
