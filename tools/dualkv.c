/**
 * @file dualkv.c
 * @brief The program: a table of commands, and nothing else.
 *
 * To add a command: a file cmd_NAME.c, its declaration in tool.h, one line here.
 *
 * Read before: tool.h.  Read next: cmd_layout.c, the simplest command.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/tool.h"

static const struct dkv_command commands[] = {
    {"demo", "the tour: draws a small group, shows packed == replicated, times both", dkv_cmd_demo},
    {"layout", "draws segments, positions, mask and tiles", dkv_cmd_layout},
    {"cost", "counts tokens, pairs, FLOPs and bytes, packed beside replicated", dkv_cmd_cost},
    {"count", "counts what attention kernels load and compute, without running one", dkv_cmd_count},
    {"attention", "runs a case file and writes o, lse, dq, dk, dv", dkv_cmd_attention},
    {"check", "compares results with answers; without a case, runs every law", dkv_cmd_check},
    {"bench", "checks, then times packed and replicated with the same kernel", dkv_cmd_bench},
    {"kernels", "lists the attention kernels and says which run here", dkv_cmd_kernels},
    {"train", "learns a task by GRPO, DAPO and their kin, packed or replicated", dkv_cmd_train},
    {"sample", "shows what a trained model answers", dkv_cmd_sample},
    {"plot", "draws accuracy by step and by second from training metrics", dkv_cmd_plot},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void help(FILE *stream) {
  fprintf(stream, "dualkv: attention for one prompt and its many responses, the prompt computed once\n\n"
                  "usage: dualkv COMMAND [FLAGS] [FILES]\n\n");
  for (int i = 0; i < COMMANDS; ++i) fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].summary);
  fprintf(stream, "\ndualkv COMMAND --help explains a command.  Exit code: 0 all is well, 1 a comparison failed,\n"
                  "2 a bad flag, a bad file, an impossible shape or a backend that is not here.\n");
}

/** The command's exit code. */
static int run(int argc, char **argv) {
  if (argc < 2) {
    help(stderr);
    return DKV_EXIT_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    help(stdout);
    return DKV_EXIT_OK;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("dualkv, commit %s\n", dkv_tool_commit());
    return DKV_EXIT_OK;
  }
  for (int i = 0; i < COMMANDS; ++i)
    if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
  return dkv_tool_fail(
      dkv_fail(DKV_ERR_RANGE, "dualkv: there is no command \"%.60s\"; dualkv --help lists them", argv[1]));
}

/** What could not be printed (a full disk, a closed stream) is no success, whatever was computed. */
int main(int argc, char **argv) {
  int code = run(argc, argv);
  errno = 0;
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return code;
  fprintf(stderr, "dualkv: standard output cannot be written: %s\n", errno != 0 ? strerror(errno) : "an earlier error");
  return code != DKV_EXIT_OK ? code : DKV_EXIT_USAGE;
}
