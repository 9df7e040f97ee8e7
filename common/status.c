/**
 * @file status.c
 * @brief One sentence per thread, written by whoever fails first and read by whoever speaks to people.
 *
 * The sentence lives in thread-local storage, so parallel callers never see each other's.  It is composed in a second
 * buffer, so that a caller may quote dkv_last_error() inside a longer sentence.
 *
 * Read before: status.h.  Read next: layout.c.
 */
#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SENTENCE_BYTES = 512 };

static _Thread_local char sentence[SENTENCE_BYTES];

const char *dkv_status_name(dkv_status status) {
  switch (status) {
  case DKV_OK: return "DKV_OK";
  case DKV_ERR_NULL: return "DKV_ERR_NULL";
  case DKV_ERR_SHAPE: return "DKV_ERR_SHAPE";
  case DKV_ERR_RANGE: return "DKV_ERR_RANGE";
  case DKV_ERR_LAYOUT: return "DKV_ERR_LAYOUT";
  case DKV_ERR_NOMEM: return "DKV_ERR_NOMEM";
  case DKV_ERR_UNSUPPORTED: return "DKV_ERR_UNSUPPORTED";
  case DKV_ERR_NO_DEVICE: return "DKV_ERR_NO_DEVICE";
  case DKV_ERR_CUDA: return "DKV_ERR_CUDA";
  case DKV_ERR_IO: return "DKV_ERR_IO";
  case DKV_ERR_FORMAT: return "DKV_ERR_FORMAT";
  case DKV_ERR_MISMATCH: return "DKV_ERR_MISMATCH";
  }
  return "unknown status";
}

const char *dkv_last_error(void) { return sentence; }

/** Names come from files and command lines: a line break or a terminal's escape in one must not break the sentence. */
static void make_printable(char *text) {
  for (; *text != '\0'; ++text) {
    unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c == 0x7f) *text = '?';
  }
}

dkv_status dkv_fail(dkv_status status, const char *format, ...) {
  char text[SENTENCE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  int written = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (written < 0) text[0] = '\0';
  make_printable(text);
  memcpy(sentence, text, sizeof sentence - 1);
  sentence[sizeof sentence - 1] = '\0';
  return status;
}
