/**
 * @file output.c
 * @brief How the program speaks: sentences on stderr, numbers that can be read, colour and progress for terminals only.
 *
 * Read before: tool.h.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tools/tool.h"

int dkv_tool_fail(dkv_status status) {
  dkv_tool_progress_end();
  fflush(stdout);
  fprintf(stderr, "%s\n", dkv_last_error()[0] != '\0' ? dkv_last_error() : dkv_status_name(status));
  return status == DKV_ERR_MISMATCH ? DKV_EXIT_MISMATCH : DKV_EXIT_USAGE;
}

const struct dkv_style *dkv_tool_style(void) {
  static const struct dkv_style plain = {"", "", "", "", ""};
  static const struct dkv_style colour = {"\033[1m", "\033[32m", "\033[1;31m", "\033[2m", "\033[0m"};
  const char *no_color = getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') ? &colour : &plain;
}

const char *dkv_tool_count(char out[32], int64_t number) {
  char digits[24];
  int length = snprintf(digits, sizeof digits, "%lld", (long long)number), used = 0;
  for (int i = 0; i < length; ++i) {
    if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) out[used++] = ' ';
    out[used++] = digits[i];
  }
  out[used] = '\0';
  return out;
}

const char *dkv_tool_bytes(char out[32], double bytes) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  for (; bytes >= 1024 && u < 5; ++u) bytes /= 1024;
  snprintf(out, 32, bytes >= 100 || u == 0 ? "%.0f %s" : "%.1f %s", bytes, unit[u]);
  return out;
}

static bool progress_always, progress_shown;

void dkv_tool_progress_always(void) { progress_always = true; }

void dkv_tool_progress(const char *format, ...) {
  bool terminal = isatty(STDERR_FILENO);
  if (!terminal && !progress_always) return;
  va_list arguments;
  va_start(arguments, format);
  if (terminal) fputs("\r\033[K", stderr);
  vfprintf(stderr, format, arguments);
  if (!terminal) fputc('\n', stderr);
  va_end(arguments);
  fflush(stderr);
  progress_shown = terminal;
}

void dkv_tool_progress_end(void) {
  if (progress_shown) fputs("\r\033[K", stderr);
  progress_shown = false;
}

const char *dkv_tool_date(char out[32]) {
  time_t now = time(NULL);
  struct tm utc;
  if (gmtime_r(&now, &utc) == NULL || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) snprintf(out, 32, "unknown");
  return out;
}
