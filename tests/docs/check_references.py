#!/usr/bin/env python3
"""Checks that prose names things that exist.

- every relative link of every Markdown file leads to a file that is there (and an #anchor to a heading of it);
- every citation of code, written  `name` (path/to/file)  or  `name`, `name` (path), names a word that stands in that file.

A page that cites a function which is gone fails here, so prose cannot drift from the code.
"""
import os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CITATION = re.compile(r"((?:`[\w.]+`(?:,\s+|\s+and\s+)?)+)\s+\(((?:[\w.-]+/)+[\w.-]+|Makefile|[\w-]+\.md)\)")


def anchors(path):
    """GitHub's anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", open(path).read(), flags=re.S)
    heads = re.findall(r"^#+\s+(.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower().replace("`", "")).strip().replace(" ", "-") for h in heads}


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
    return wrong, len(CITATION.findall(re.sub(r"\s+", " ", prose)))


def main():
    pages = sys.argv[1:] or subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                                                   text=True).split()
    failed, cited = [], 0
    for page in pages:
        wrong, count = check(page)
        failed += wrong
        cited += count
    print("\n".join(failed + ["references: %d pages, %d citations, %d wrong" % (len(pages), cited, len(failed))]))
    return 1 if failed or not pages else 0


sys.exit(main())
