"""Runs the functions test_* of a module, for test programs that need nothing but Python.  Read next: test_dualkv.py."""
import sys


def run(name, functions):
    """Runs every test_* of the dictionary `functions`, prints what failed and "NAME: N passed, N failed", and exits."""
    passed = failed = 0
    for title, test in sorted(functions.items()):
        if title.startswith("test_"):
            try:
                test()
                passed += 1
            except Exception as error:
                failed += 1
                print("FAIL %s: %r" % (title, error))
    print("%s: %d passed, %d failed" % (name, passed, failed))
    sys.exit(1 if failed or not passed else 0)
