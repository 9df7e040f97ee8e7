#!/usr/bin/env python3
"""Does what docs/adding_a_kernel.md says, word for word, in a copy of the project: the C of the page becomes a file, the line
of the page goes into kernels.def, the program is built, and the kernel is judged.  Then an error is planted in it, which
the judge must name.

  follow_adding_a_kernel.py BUILD      BUILD holds a finished `make tool` of this tree; its objects are reused
"""
import os, re, shutil, subprocess, sys, tempfile, textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = open(os.path.join(ROOT, "docs/adding_a_kernel.md")).read()
counts = [0, 0]


def block(kind):
    """The page's only fenced block of that kind."""
    found = re.findall(r"^ *```%s\n(.*?)^ *```" % kind, PAGE, flags=re.S | re.M)
    assert len(found) == 1, "%d blocks ```%s" % (len(found), kind)
    return textwrap.dedent(found[0])


def expect(what, command, code, sentence):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    good = done.returncode == code and re.search(sentence, done.stdout) is not None
    counts[not good] += 1
    if not good:
        print("FAIL: %s: exit code %d, not %d, or no \"%s\" in\n%s" % (what, done.returncode, code, sentence, done.stdout[-3000:]))
    return good


def main():
    built = os.path.abspath(sys.argv[1])
    scratch = tempfile.mkdtemp()
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "Makefile", "common", "cpu", "gpu", "tools",
                                     "tests/cases"], cwd=ROOT, text=True).split("\n")
    for part in ("common", "cpu", "tools"):
        shutil.copytree(os.path.join(built, part), os.path.join(scratch, "build", part))
    shutil.copy2(os.path.join(built, ".flags-c"), os.path.join(scratch, "build"))
    for file in filter(None, files):
        source, copy = os.path.join(ROOT, file), os.path.join(scratch, file)
        if not os.path.exists(source):
            continue
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(source, copy)
        built_object = os.path.join(scratch, "build", file[:-1] + "o")
        if file.endswith(".c") and os.path.exists(built_object) and "kernels.def" in open(source).read():
            os.remove(built_object)  # what make noted about it names another folder
    os.chdir(scratch)
    try:
        source, line = "cpu/attention/online_fwd.c", "DKV_KERNEL(cpu, fwd, tiled,"
        code, kernels = block("c"), open("common/kernels.def").read()
        open(source, "w").write(code)
        open("common/kernels.def", "w").write(kernels.replace(line, block("def") + line, 1))
        make = ["sh", "-c", "make BUILD=build tool 2>&1 | tee make.log; ! grep -n -e warning: -e error: make.log"]
        check = ["build/dualkv", "check", "--backend", "cpu", "--kernel", "online"]
        cases = ["tests/cases/%s.safetensors" % name for name in ("smallest", "equal_responses", "ragged_and_empty")]
        if expect("the page's kernel builds without a warning", make, 0, "online_fwd"):
            expect("it is listed", ["build/dualkv", "kernels"], 0, "cpu +forward +online +yes")
            for law in ("definition", "fold", "refuse"):
                expect("law " + law, check + ["--law", law], 0, "(?m)^3 passed, 0 failed$")
            numpy = subprocess.run(["python3", "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode == 0
            expect("a case of one's own", ["python3" if numpy else "/usr/bin/python3", "tests/cases/make_cases.py", "own.safetensors",
                                           "--lengths", "20,7,0,9", "--head-dim", "16", "--dtype", "BF16"], 0, "")
            expect("is judged too", check[:2] + ["own.safetensors"] + check[2:], 0, "(?m)^5 passed, 0 failed$")
            expect("cases", check[:2] + cases + check[2:], 0, "(?m)^15 passed, 0 failed$")
        if shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc"):
            subprocess.run(["sh", "-c", block("sh")], check=True)
            expect("the copy of the first GPU rung compiles", ["make", "BUILD=build", "build/gpu/attention/fwd_1_mine.cu.o"], 0, "nvcc")
        planted = code.replace("alpha * o[d]", "o[d]")
        assert planted != code
        open(source, "w").write(planted)
        if expect("the planted error builds", make, 0, "online_fwd"):
            expect("it is found", check + ["--law", "definition"], 1, r'FAIL: o is off by .* row \d+, index \d+ is .* on "one of each"')
            expect("a case finds it", check[:2] + cases[1:2] + check[2:], 1, r"FAIL: o row \d+, index \d+ is")
    finally:
        os.chdir(ROOT)
        shutil.rmtree(scratch)
    print("%d passed, %d failed" % tuple(counts))
    return 1 if counts[1] else 0


sys.exit(main())
