#!/usr/bin/env python3
"""Computes the arithmetic of the prose again: every  EXPRESSION = NUMBER  whose expression consists of numbers alone.

    2048 · 2049 / 2 + 8 (512 · 2048 + 512 · 513 / 2) = 11 537 408        2/10 + 8/10 = 0.6        1/2 + 1/4 = 3/4
    32 · 8192 · 8 · 128 · 2 · 4 bytes = 2.15 GB                          (256 + 1) · 2 = 514 = 2 · 257

Thousands may stand apart, `8 (1 + 2)` multiplies, 2^5 is a power; sqrt, ln, log2 and exp take a number or a bracket.  What is printed must
be the result rounded to the digits that are printed.  Blocks between ``` are left to run_console.py, expressions with letters to
the reader.

  check_arithmetic.py [FILE...]     all Markdown pages and the texts of the labs by default; exit code 1 when something is wrong
"""
import math, os, re, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKEN = re.compile(
    r"(?P<number>\d{1,3}(?: \d{3})+(?!\d)|\d+(?:\.\d+)?(?:e[-+]?\d+)?)|(?P<op>[-+·*/^()−×]|(?<=\d )x(?= \d))"
    r"|(?P<fn>sqrt|ln|log2|exp)\b|(?P<gap>\s+)|(?P<other>.)", re.S)
UNITS = {"": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
TIMES = ("·", "*", "×", "x")
SIDE_END = re.compile(r"\s*(?:bytes)?\s*$")
FUNCTIONS = {"sqrt": math.sqrt, "ln": math.log, "log2": math.log2, "exp": math.exp}


def tokens(text):
    """(kind, text) of numbers, operators, functions, gaps and everything else."""
    return [(m.lastgroup, m.group()) for m in TOKEN.finditer(text)]


class Reader:
    """Recursive descent over tokens without gaps: sums, products (also implied before a bracket), powers, signs."""

    def __init__(self, toks):
        self.toks, self.at = toks, 0

    def peek(self):
        return self.toks[self.at] if self.at < len(self.toks) else (None, None)

    def take(self):
        self.at += 1
        return self.toks[self.at - 1]

    def sum(self):
        value = self.product()
        while self.peek()[1] in ("+", "-", "−"):
            sign = -1 if self.take()[1] != "+" else 1
            value += sign * self.product()
        return value

    def product(self):
        value = self.power()
        while self.peek()[1] in (*TIMES, "/", "(") or self.peek()[0] == "fn":
            op = self.take()[1] if self.peek()[1] in (*TIMES, "/") else "·"
            factor = self.power()
            value = value / factor if op == "/" else value * factor
        return value

    def power(self):
        base = self.atom()
        if self.peek()[1] == "^":
            self.take()
            return base ** self.power()
        return base

    def atom(self):
        kind, text = self.take() if self.at < len(self.toks) else (None, None)
        if text in ("-", "−"):
            return -self.power()
        if kind == "number":
            return float(text.replace(" ", ""))
        if kind == "fn":
            return FUNCTIONS[text](self.atom())
        if text == "(":
            value = self.sum()
            if self.take()[1] != ")":
                raise ValueError
            return value
        raise ValueError


def value_of(toks):
    """The value of a whole expression, None when it is none."""
    reader = Reader([t for t in toks if t[0] != "gap"])
    try:
        value = reader.sum()
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None
    return value if reader.at == len(reader.toks) and isinstance(value, float) else None


def numeric_tail(text):
    """The expression of numbers that ends a text, as tokens; None when letters belong to it."""
    toks = tokens(SIDE_END.sub("", text))
    start = len(toks)
    while start > 0 and toks[start - 1][0] != "other":
        start -= 1
    part = toks[start:]
    if part and part[0][1] == ")" and start > 1 and toks[start - 2][1] == "(":
        part = part[1:]  # (a) 3 + 4
    if start > 0 and part and part[0][0] != "gap" and re.match(r"[\w)\]$%_'.]", toks[start - 1][1]):
        return None  # x2, a word that runs into the number
    while part and part[0][0] == "gap":
        part = part[1:]
    if not part or part[0][1] in (")", "/", "^", "+", *TIMES):
        return None  # something with letters goes on here
    if part[0][1] in ("-", "−") and part[1:] and part[1][0] == "gap":
        return None
    if part[0][1] == "(":
        if [t[1] for t in part].count("(") > [t[1] for t in part].count(")"):
            part = part[1:]  # the text's own bracket
        elif start > 0 and toks[start - 1][1].isalnum():
            return None  # N (9216 - 4608)
    while part and value_of(part) is None:  # of two numbers side by side the first belongs to the text
        cut = next((n for n in range(1, len(part)) if part[n - 1][0] == "gap" and part[n][0] in ("number", "fn")
                    and n >= 2 and part[n - 2][0] == "number"), None)
        if cut is None:
            return None
        part = part[cut:]
    return part or None


def numeric_head(text):
    """(value, unit of its last digit, text) of what follows an equals sign: a number, a fraction, a product; or None."""
    m = re.match(r"\s*(?:\*\*)?([-−]?\d{1,3}(?: \d{3})+(?!\d)|[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?:\*\*)?", text)
    if not m or re.match(r"\.\.\.|[A-Za-z_%]", text[m.end():]) or text[m.end():].startswith((" %", " ln", " log", " exp")):
        return None
    rest = re.match(r"(?:\s*(?:[·*/^×]|x(?= ))\s*\d+(?:\.\d+)?|\s*[-+−]\s*\d)*", text[m.end():])
    whole = m.group() + rest.group()
    if re.match(r"\s*[-+−·*/^×(]\s*[\w(]", text[m.end() + rest.end():]) or re.search(r"[-+−]\s*\d$", rest.group()):
        return None  # goes on with letters: not a result
    toks = [t for t in tokens(whole.replace("**", ""))]
    value = value_of(toks)
    if value is None:
        return None
    plain = m.group(1)
    if rest.group().strip():
        step = 0.0
    elif "e" in plain:
        mantissa, exponent = plain.split("e")
        step = 10.0 ** (int(exponent) - len(mantissa.partition(".")[2]))
    else:
        step = 10.0 ** -len(plain.partition(".")[2])
    unit = re.match(r"\s(kB|MB|GB|TB)\b", text[m.end() + rest.end():])
    scale = UNITS[unit.group(1)] if unit else 1
    return value * scale, step * scale, whole.strip()


def check(page):
    """(sentences about what is wrong, equations computed) of a file."""
    text = open(os.path.join(ROOT, page), encoding="utf-8").read()
    if page.endswith(".py"):
        text = "\n".join(line[2:] if line.startswith("# ") else "" for line in text.split("\n"))
    text = re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)
    wrong, count = [], 0
    for m in re.finditer(r"(?<![<>=!:])=(?!=)", text):
        line = text.count("\n", 0, m.start()) + 1
        begin = max(text.rfind(c, 0, m.start()) for c in ("=", "|", ";", ":", "\n\n", "`"))
        stops = [stop.end() for stop in re.finditer(r"[.,] ", text[begin + 1:m.start()])]
        begin_sentence = begin + 1 + (stops[-1] if stops else 0)
        left, right = numeric_tail(text[begin_sentence:m.start()]), numeric_head(text[m.end():m.end() + 60])
        if not left or not right or sum(t[0] in ("op", "fn") for t in left) == 0:
            continue
        got = value_of(left)
        count += 1
        if abs(got - right[0]) > 0.5000001 * right[1] + 1e-9 * abs(got):
            wrong.append("%s:%d: %s= %s, but it is %.10g" % (page, line, "".join(t[1] for t in left).lstrip(), right[2], got))
    return wrong, count


def main():
    pages = sys.argv[1:] or subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md", "notebooks/labs/*.py"], cwd=ROOT, text=True).split()
    failed, computed = [], 0
    for page in pages:
        wrong, count = check(page)
        failed += wrong
        computed += count
    print("\n".join(failed + ["arithmetic: %d pages, %d computed, %d wrong" % (len(pages), computed, len(failed))]))
    return 1 if failed or not computed else 0


sys.exit(main())
