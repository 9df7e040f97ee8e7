/**
 * @file curves.c
 * @brief Draws the files of metrics of `dualkv train`: accuracy by step and by second, as one SVG with two panels, one
 * above the other.
 *
 * Thin lines are the share of exact answers among a step's own samples (a mean over seven steps), dots are held-out
 * evaluations.  The picture has no script and no font of its own; it is narrow enough for a phone, and its colours
 * follow the reader's choice of a light or a dark page.
 *
 * Read before: train_log.c.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/json_file.h"
#include "tools/train.h"

enum { CURVES = 8, WIDTH = 480, PANEL = 400, PLOT_HEIGHT = 190, TOP = 78, LEFT = 48, GAP = 62, PANELS = 2 };

static const char *const colours[CURVES] = {"#0b6fa4", "#c8501e", "#2e8b57", "#7b4fa3",
                                            "#b8860b", "#555555", "#c2185b", "#00838f"};

/** A point: where (steps and seconds) and how high. */
struct point {
  double at[2], height;
};

/** One file. */
struct curve {
  char name[64];
  struct point *step, *held_out;
  int32_t steps, evaluations;
};

static double number(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

/** Appends a point when all its numbers are there. */
static void append(struct point **list, int32_t *count, const cJSON *object, const char *key) {
  struct point p = {{number(object, "step"), number(object, "seconds")}, number(object, key)};
  if (!isfinite(p.at[0]) || !isfinite(p.at[1]) || !isfinite(p.height)) return;
  struct point *longer = realloc(*list, ((size_t)*count + 1) * sizeof *longer);
  if (longer == NULL) return;
  longer[(*count)++] = p;
  *list = longer;
}

static dkv_status read_curve(struct curve *out, const char *path) {
  FILE *file = fopen(path, "r");
  char *line = NULL;
  size_t room = 0;
  DKV_REQUIRE(file != NULL, DKV_ERR_IO, "cannot read %s: %s", path, strerror(errno));
  while (getline(&line, &room, file) > 0) {
    cJSON *o = cJSON_Parse(line);
    const char *kind = text(o, "kind");
    if (strcmp(kind, "run") == 0)
      snprintf(out->name, sizeof out->name, "%.16s %.16s, seed %.0f", text(o, "layout"), text(o, "algorithm"),
               number(o, "seed"));
    if (strcmp(kind, "step") == 0) append(&out->step, &out->steps, o, "accuracy");
    if (strcmp(kind, "evaluation") == 0) append(&out->held_out, &out->evaluations, o, "sampled");
    cJSON_Delete(o);
  }
  free(line);
  fclose(file);
  DKV_REQUIRE(out->steps > 0, DKV_ERR_FORMAT, "%s holds no step of a training run", path);
  return DKV_OK;
}

/** The largest number of a panel's axis: 1, 2 or 5 times a power of ten. */
static double round_up(double x) {
  double power = pow(10, floor(log10(fmax(x, 1e-9))));
  for (int i = 0; i < 4; ++i) {
    static const double nice[] = {1, 2, 5, 10};
    if (x <= nice[i] * power * 1.0000001) return nice[i] * power;
  }
  return 10 * power;
}

static int top_of(int panel) { return TOP + panel * (PLOT_HEIGHT + GAP); }
static double place_x(double share) { return LEFT + PANEL * share; }
static double place_y(int panel, double height) { return top_of(panel) + PLOT_HEIGHT * (1 - height); }

/** Frame, grid and numbers. */
static void draw_axes(FILE *f, int panel, double most) {
  static const char *const label[] = {"step", "seconds of sampling and updates"};
  int top = top_of(panel), bottom = top + PLOT_HEIGHT;
  for (int i = 0; i <= 5; ++i) {
    double x = place_x(i / 5.0), y = place_y(panel, i / 5.0);
    fprintf(f, "<path class='grid' d='M%.1f %.1fH%.1fM%.1f %dV%d'/>\n", place_x(0), y, place_x(1), x, top, bottom);
    fprintf(f, "<text x='%.1f' y='%.1f' text-anchor='end'>%.1f</text>\n", place_x(0) - 6, y + 4, i / 5.0);
    fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x, bottom + 18, most * i / 5.0);
  }
  fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", place_x(0.5), bottom + 36, label[panel]);
}

/** One curve in one panel: the smoothed line and the dots. */
static void draw_curve(FILE *f, int panel, const struct curve *c, double most, const char *colour) {
  enum { REACH = 3 };
  fprintf(f, "<polyline fill='none' stroke='%s' stroke-width='1.5' points='", colour);
  for (int32_t i = 0; i < c->steps; ++i) {
    double sum = 0;
    int32_t from = i < REACH ? 0 : i - REACH, to = i + REACH < c->steps ? i + REACH : c->steps - 1;
    for (int32_t j = from; j <= to; ++j) sum += c->step[j].height;
    fprintf(f, "%.1f,%.1f ", place_x(c->step[i].at[panel] / most), place_y(panel, sum / (to - from + 1)));
  }
  fprintf(f, "'/>\n");
  for (int32_t i = 0; i < c->evaluations; ++i)
    fprintf(f, "<circle cx='%.1f' cy='%.1f' r='4' fill='%s'/>\n", place_x(c->held_out[i].at[panel] / most),
            place_y(panel, c->held_out[i].height), colour);
}

/** Text as XML has it. */
static void write_text(FILE *f, const char *text) {
  for (; *text != '\0'; ++text) {
    if (*text == '<') fputs("&lt;", f);
    else if (*text == '&') fputs("&amp;", f);
    else if ((unsigned char)*text >= ' ') fputc(*text, f);
  }
}

static void draw(FILE *f, const char *title, const struct curve *curves, int32_t count) {
  int end = top_of(PANELS) - GAP + 62;
  fprintf(f, "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='640' role='img'>\n<title>", WIDTH,
          end + 18 * count);
  write_text(f, title);
  fprintf(f, "</title>\n"
             "<style>text{font:13px sans-serif;fill:#16202c}.grid{stroke:#d3dae3}.bg{fill:#fff}.b{font-weight:600}\n"
             "@media (prefers-color-scheme:dark){text{fill:#e7ecf2}.grid{stroke:#39434f}.bg{fill:#12171e}}</style>\n"
             "<rect class='bg' width='100%%' height='100%%'/>\n<text class='b' x='14' y='24'>");
  write_text(f, title);
  fprintf(f, "</text>\n");
  fprintf(f, "<text x='14' y='44'>share of exact answers: lines, a step's own samples</text>\n"
             "<text x='14' y='62'>(mean of 7 steps); dots, held-out prompts</text>\n");
  for (int panel = 0; panel < PANELS; ++panel) {
    double most = 0;
    for (int32_t i = 0; i < count; ++i) most = fmax(most, curves[i].step[curves[i].steps - 1].at[panel]);
    most = round_up(most);
    draw_axes(f, panel, most);
    for (int32_t i = 0; i < count; ++i) draw_curve(f, panel, &curves[i], most, colours[i]);
  }
  for (int32_t i = 0; i < count; ++i) {
    fprintf(f, "<rect x='%d' y='%d' width='14' height='4' fill='%s'/><text x='%d' y='%d'>", LEFT, end + 18 * i - 6,
            colours[i], LEFT + 20, end + 18 * i);
    write_text(f, curves[i].name);
    fprintf(f, "</text>\n");
  }
  fprintf(f, "</svg>"); /* the file gets its last newline when it is saved */
}

dkv_status dkv_curves_draw(const char *out, const char *title, const char *const *paths, int32_t count) {
  struct curve curves[CURVES];
  memset(curves, 0, sizeof curves);
  DKV_REQUIRE(count >= 1 && count <= CURVES, DKV_ERR_RANGE, "a picture of %d curves; it takes 1 to %d", count, CURVES);
  dkv_status status = DKV_OK;
  for (int32_t i = 0; status == DKV_OK && i < count; ++i) status = read_curve(&curves[i], paths[i]);
  if (status == DKV_OK) {
    char *picture = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&picture, &bytes);
    if (f != NULL) draw(f, title, curves, count);
    if (f == NULL || fclose(f) != 0) status = dkv_fail(DKV_ERR_NOMEM, "no memory for a picture of %d curves", count);
    if (status == DKV_OK) status = dkv_text_save(out, picture);
    free(picture);
  }
  for (int32_t i = 0; i < count; ++i) {
    free(curves[i].step);
    free(curves[i].held_out);
  }
  return status;
}
