/**
 * @file args.h
 * @brief A small parser for command lines: a table of flags, which is also what --help prints.
 *
 * Flags are spelt `--flag VALUE`, `--flag=VALUE` or, for a switch, `--flag`; `-o` stands for a flag named "o"; `--`
 * ends the flags.  Everything else is an operand (a file).  A flag that is not in the table, a value that is missing,
 * no number or out of its range gives one sentence that names command, flag, value and rule.
 *
 * Read next: dualkv.c, where every command has its table.
 */
#ifndef DKV_TOOLS_ARGS_H
#define DKV_TOOLS_ARGS_H

#include "common/status.h"

/** What the value of a flag is. */
enum dkv_flag_kind {
  DKV_FLAG_SWITCH, /**< no value; target is a bool */
  DKV_FLAG_INT,    /**< a whole number in [low, high]; target is an int64_t */
  DKV_FLAG_REAL,   /**< a finite number in [low, high]; target is a double */
  DKV_FLAG_TEXT,   /**< anything; target is a const char * */
  DKV_FLAG_LIST,   /**< may be repeated; target is a struct dkv_text_list */
  DKV_FLAG_TITLE   /**< no flag: a heading of the help, in `help` */
};

/** Most operands, and most repeats of a DKV_FLAG_LIST. */
enum { DKV_MAX_TEXTS = 64 };

/** Texts in the order of the command line; they point into argv. */
struct dkv_text_list {
  int32_t count;                   /**< number of texts */
  const char *text[DKV_MAX_TEXTS]; /**< the texts */
};

/** One flag. A table of them ends with a NULL name and a NULL help. */
struct dkv_flag {
  const char *name;        /**< without dashes */
  enum dkv_flag_kind kind; /**< kind of its value */
  void *target;            /**< where the value goes; holds the default before parsing */
  const char *value;       /**< what help calls the value, "N"; NULL for a switch */
  const char *help;        /**< one line */
  double low;              /**< least number; low and high both 0: no limit but that of the kind */
  double high;             /**< greatest number */
};

/**
 * Parses the arguments of one command.
 * @param[in]  command    name of the command, for sentences
 * @param[in]  flags      the table; targets are overwritten by flags that occur
 * @param[in]  argc,argv  what follows the command's name
 * @param[out] operands   overwritten: what is not a flag; NULL when the command takes none
 * @return DKV_OK; DKV_ERR_RANGE with a sentence
 */
dkv_status dkv_args_parse(const char *command, const struct dkv_flag *flags, int argc, char *const *argv,
                          struct dkv_text_list *operands);

/**
 * Answers --help or -h: prints what the command is about and, after an empty line, its table of flags, aligned.
 * @param[in] about     text that ends in a new line
 * @param[in] flags     the table
 * @param[in] argc,argv what follows the command's name; what stands behind "--" does not count
 * @return was it asked for?  If so the command is done.
 */
bool dkv_args_help(const char *about, const struct dkv_flag *flags, int argc, char *const *argv);

/**
 * Reads a list of whole numbers separated by commas.
 * @param[out] out      [capacity] overwritten
 * @param[in]  capacity room
 * @param[out] count    numbers read
 * @param[in]  what     what the sentence calls the text, "--lengths"
 * @param[in]  text     "3,0,64"; an empty text is an empty list
 * @return DKV_OK; DKV_ERR_RANGE (not a number, outside int32 or negative, more than capacity)
 */
dkv_status dkv_args_numbers(int32_t *out, int32_t capacity, int32_t *count, const char *what, const char *text);

#endif
