#!/usr/bin/env python3
"""Checks that prose names things that exist.

- every relative link of every Markdown file leads to a file that is there (and an #anchor to a heading of it);
- every citation of code, written  `name` (path/to/file)  or  `name`, `name` (path), names a word that stands in that file;
- a row of a table that begins with numbers, | `2e-6`, `32` | ..., and cites code: each of them stands in what it cites, that is in
  the function or test of that name, or in the line of that constant;
- the file that a source names after "Read before:" or "Read next:" is there.

A page that cites a function which is gone fails here, so prose cannot drift from the code.
"""
import os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CITATION = re.compile(r"((?:`[\w.]+`(?:,\s+|\s+and\s+)?)+)\s+\(((?:[\w.-]+/)+[\w.-]+|Makefile|[\w-]+\.md)\)")

NUMBER = re.compile(r"`(-?\d[\d.]*(?:e[-+]?\d+)?)`")
READ = re.compile(r"Read (?:before|next): ((?:[^.]|\.(?=\w))*)")


def anchors(path):
    """GitHub's anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", open(path).read(), flags=re.S)
    heads = re.findall(r"^#+\s+(.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower().replace("`", "")).strip().replace(" ", "-") for h in heads}


def body(name, code):
    """The lines of a file that belong to a name: of a function or test from its head to its brace, of a constant its statement."""
    lines, found = code.split("\n"), []
    for n, line in enumerate(lines):
        if not re.search(r"(?<!\w)" + re.escape(name) + r"(?!\w)", line) or re.match(r"\s*(?://|/?\*)", line):
            continue
        end = n
        if re.match(r"[\w#]", line) and not line.startswith("#") and not line.rstrip().endswith(";"):
            while end + 1 < len(lines) and not re.match(r"\}", lines[end]) and not lines[end].rstrip().endswith("; }"):
                end += 1
        found += lines[n:end + 1]
    return "\n".join(found)


def check(page):
    """Sentences about what is wrong on a page."""
    text, here, wrong = open(os.path.join(ROOT, page)).read(), os.path.dirname(page), []
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(ROOT, here, name)) if name else os.path.join(ROOT, page)
        if not os.path.exists(path):
            wrong.append("%s: the link to %s leads nowhere" % (page, target))
        elif anchor and path.endswith(".md") and anchor not in anchors(path):
            wrong.append("%s: %s has no heading #%s" % (page, name or page, anchor))
    for names, path in CITATION.findall(re.sub(r"\s+", " ", prose)):
        if not os.path.exists(os.path.join(ROOT, path)):
            wrong.append("%s: it cites %s, which is not there" % (page, path))
            continue
        code = open(os.path.join(ROOT, path), errors="replace").read()
        for name in re.findall(r"`([\w.]+)`", names):
            if not re.search(r"(?<!\w)" + re.escape(name) + r"(?!\w)", code):
                wrong.append("%s: `%s` is cited from %s, where it does not stand" % (page, name, path))
    for row in re.findall(r"^\| `.*$", prose, flags=re.M):
        cited = [(names, path) for names, path in CITATION.findall(row) if os.path.exists(os.path.join(ROOT, path))]
        code = " ".join(body(name, open(os.path.join(ROOT, path), errors="replace").read())
                        for names, path in cited for name in re.findall(r"`([\w.]+)`", names))
        for value in NUMBER.findall(row.split("|")[1]) if cited else []:
            if not re.search(r"(?<![\w.])" + re.escape(value) + r"(?:\.0)?f?(?![\w.])", code):
                wrong.append("%s: `%s` does not stand in %s" % (
                    page, value, " or ".join("%s (%s)" % pair for pair in cited)))
    return wrong, len(CITATION.findall(re.sub(r"\s+", " ", prose)))


def check_reading_order(source):
    """Sentences about files that a source tells its reader to read, and that are not there."""
    text, wrong = re.sub(r"\n\s*(?:\*|//|#)?", " ", open(os.path.join(ROOT, source), errors="replace").read()[:6000]), []
    for names in READ.findall(text):
        for name in re.findall(r"[\w/]+\.(?:cuh|cu|c|h|py|sh|md|def)\b", names):
            places = [name, os.path.join(os.path.dirname(source), name)] + [os.path.join(d, name) for d in (
                "common", "cpu", "cpu/attention", "gpu", "gpu/attention", "gpu/runtime", "gpu/hopper", "tests/support")]
            if not any(os.path.exists(os.path.join(ROOT, p)) for p in places):
                wrong.append("%s: it names %s to be read, which is not there" % (source, name))
    return wrong


def main():
    pages = sys.argv[1:] or subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                                                   text=True).split()
    failed, cited = [], 0
    for page in pages:
        wrong, count = check(page)
        failed += wrong
        cited += count
    sources = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.[ch]", "*.cu", "*.cuh"], cwd=ROOT,
                                      text=True).split() if not sys.argv[1:] else []
    for source in sources:
        if os.path.exists(os.path.join(ROOT, source)):
            failed += check_reading_order(source)
    counts = "references: %d pages, %d citations, %d sources, %d wrong" % (len(pages), cited, len(sources), len(failed))
    print("\n".join(failed + [counts]))
    return 1 if failed or not pages else 0


sys.exit(main())
