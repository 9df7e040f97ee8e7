/**
 * @file args.c
 * @brief Command lines: one pass over argv against a table of flags.
 *
 * Read before: args.h.
 */
#include "tools/args.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_end(const struct dkv_flag *flag) { return flag->name == NULL && flag->help == NULL; }

/** Finds the flag whose name is the first `length` bytes of `name`. */
static const struct dkv_flag *find(const struct dkv_flag *flags, const char *name, size_t length) {
  for (; !is_end(flags); ++flags)
    if (flags->name != NULL && strlen(flags->name) == length && memcmp(flags->name, name, length) == 0) return flags;
  return NULL;
}

/** Dashes in front of a flag's name: one for a letter. */
static const char *dashes(const struct dkv_flag *flag) { return flag->name[1] == '\0' ? "-" : "--"; }

static dkv_status set_int(const char *command, const struct dkv_flag *flag, const char *value) {
  char *rest = NULL;
  errno = 0;
  long long number = strtoll(value, &rest, 10);
  bool limited = flag->low != 0 || flag->high != 0;
  DKV_REQUIRE(rest != value && *rest == '\0' && errno == 0, DKV_ERR_RANGE,
              "dualkv %s: %s%s is a whole number, not \"%.60s\"", command, dashes(flag), flag->name, value);
  DKV_REQUIRE(!limited || ((double)number >= flag->low && (double)number <= flag->high), DKV_ERR_RANGE,
              "dualkv %s: %s%s is %lld; it goes from %.0f to %.0f", command, dashes(flag), flag->name, number,
              flag->low, flag->high);
  *(int64_t *)flag->target = number;
  return DKV_OK;
}

static dkv_status set_real(const char *command, const struct dkv_flag *flag, const char *value) {
  char *rest = NULL;
  double number = strtod(value, &rest);
  bool limited = flag->low != 0 || flag->high != 0;
  DKV_REQUIRE(rest != value && *rest == '\0' && isfinite(number), DKV_ERR_RANGE,
              "dualkv %s: %s%s is a finite number, not \"%.60s\"", command, dashes(flag), flag->name, value);
  DKV_REQUIRE(!limited || (number >= flag->low && number <= flag->high), DKV_ERR_RANGE,
              "dualkv %s: %s%s is %g; it goes from %g to %g", command, dashes(flag), flag->name, number, flag->low,
              flag->high);
  *(double *)flag->target = number;
  return DKV_OK;
}

static dkv_status append(const char *command, struct dkv_text_list *list, const char *text) {
  DKV_REQUIRE(list->count < DKV_MAX_TEXTS, DKV_ERR_RANGE, "dualkv %s: \"%.60s\" is one too many; %d are the most",
              command, text, DKV_MAX_TEXTS);
  list->text[list->count++] = text;
  return DKV_OK;
}

/** Stores one value. */
static dkv_status set(const char *command, const struct dkv_flag *flag, const char *value) {
  switch (flag->kind) {
  case DKV_FLAG_INT: return set_int(command, flag, value);
  case DKV_FLAG_REAL: return set_real(command, flag, value);
  case DKV_FLAG_LIST: return append(command, flag->target, value);
  case DKV_FLAG_SWITCH: *(bool *)flag->target = true; return DKV_OK;
  case DKV_FLAG_TEXT:
  case DKV_FLAG_TITLE: break;
  }
  *(const char **)flag->target = value;
  return DKV_OK;
}

/** Is this argument spelt like a flag?  "-" alone and negative numbers are not. */
static bool looks_like_flag(const char *argument) {
  return argument[0] == '-' && argument[1] != '\0' && !(argument[1] >= '0' && argument[1] <= '9');
}

dkv_status dkv_args_parse(const char *command, const struct dkv_flag *flags, int argc, char *const *argv,
                          struct dkv_text_list *operands) {
  bool only_operands = false;
  if (operands != NULL) operands->count = 0;
  for (int i = 0; i < argc; ++i) {
    const char *argument = argv[i];
    if (!only_operands && strcmp(argument, "--") == 0) {
      only_operands = true;
      continue;
    }
    if (only_operands || !looks_like_flag(argument)) {
      DKV_REQUIRE(operands != NULL, DKV_ERR_RANGE, "dualkv %s: \"%.60s\" is not a flag, and %s takes no file", command,
                  argument, command);
      DKV_TRY(append(command, operands, argument));
      continue;
    }
    const char *name = argument + (argument[1] == '-' ? 2 : 1), *equals = strchr(name, '=');
    const struct dkv_flag *flag = find(flags, name, equals != NULL ? (size_t)(equals - name) : strlen(name));
    DKV_REQUIRE(flag != NULL, DKV_ERR_RANGE, "dualkv %s: there is no flag %.60s; dualkv %s --help lists them", command,
                argument, command);
    bool wants_value = flag->kind != DKV_FLAG_SWITCH;
    DKV_REQUIRE(wants_value || equals == NULL, DKV_ERR_RANGE, "dualkv %s: --%s takes no value", command, flag->name);
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (wants_value && value == NULL) {
      DKV_REQUIRE(i + 1 < argc, DKV_ERR_RANGE, "dualkv %s: %s%s needs a value (%s)", command, dashes(flag), flag->name,
                  flag->value);
      value = argv[++i];
    }
    DKV_TRY(set(command, flag, value));
  }
  return DKV_OK;
}

/** Was --help or -h among the arguments? */
static bool wants_help(int argc, char *const *argv) {
  for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; ++i)
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
  return false;
}

bool dkv_args_help(const char *about, const struct dkv_flag *flags, int argc, char *const *argv) {
  if (!wants_help(argc, argv)) return false;
  fputs(about, stdout);
  if (flags->kind != DKV_FLAG_TITLE) putchar('\n'); /* a title brings its own */
  for (; !is_end(flags); ++flags) {
    if (flags->kind == DKV_FLAG_TITLE) {
      printf("\n%s\n", flags->help);
      continue;
    }
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s", dashes(flags), flags->name, flags->value != NULL ? " " : "",
             flags->value != NULL ? flags->value : "");
    printf("  %-24s %s\n", left, flags->help);
  }
  return true;
}

dkv_status dkv_args_numbers(int32_t *out, int32_t capacity, int32_t *count, const char *what, const char *text) {
  *count = 0;
  for (const char *at = text; *at != '\0';) {
    char *rest = NULL;
    errno = 0;
    long long number = strtoll(at, &rest, 10);
    DKV_REQUIRE(rest != at && (*rest == ',' || *rest == '\0') && !(*rest == ',' && rest[1] == '\0'), DKV_ERR_RANGE,
                "%s is whole numbers separated by commas, not \"%.60s\"", what, text);
    DKV_REQUIRE(errno == 0 && number >= 0 && number <= INT32_MAX, DKV_ERR_RANGE, "%s has %.40s; a length is 0 to %d",
                what, at, INT32_MAX);
    DKV_REQUIRE(*count < capacity, DKV_ERR_RANGE, "%s has more than %d numbers", what, capacity);
    out[(*count)++] = (int32_t)number;
    at = *rest == ',' ? rest + 1 : rest;
  }
  return DKV_OK;
}
