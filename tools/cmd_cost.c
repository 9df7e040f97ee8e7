/**
 * @file cmd_cost.c
 * @brief `dualkv cost`: what sharing the prompt saves for a layout and a model, counted exactly.
 *
 * Read before: tool.h, common/cost.h.
 */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cost.h"
#include "tools/tool.h"

static const char about[] =
    "usage: dualkv cost [CASE] [FLAGS]\n\n"
    "Counts tokens, attention pairs, FLOPs, bytes and memory of the packed layout beside the replicated one, exactly "
    "for any\n"
    "layout.  The model is Qwen3-8B unless flags say otherwise:\n\n"
    "  dualkv cost --prompt 8192 --responses 32 --response-length 1024\n"
    "  dualkv cost --prompt 1000 --lengths 100,20,300 --layers 1 --heads 8 --kv-heads 2 --head-dim 64\n";

/** The flags of the model, wide enough for the parser. */
struct model_flags {
  int64_t layers, width, mlp, vocabulary, heads, kv_heads, head_dim, bytes;
};

/** One line: a name, both numbers, their ratio. */
static void line(const char *name, const char *packed, const char *replicated, double ratio) {
  printf("  %-34s %18s %18s %9.2f\n", name, packed, replicated, ratio);
}

static void count_line(const char *name, int64_t packed, int64_t replicated) {
  char a[32], b[32];
  line(name, dkv_tool_count(a, packed), dkv_tool_count(b, replicated),
       packed > 0 ? (double)replicated / (double)packed : 1);
}

static void tera_line(const char *name, double packed, double replicated) {
  char a[32], b[32];
  snprintf(a, sizeof a, "%.4g", packed * 1e-12);
  snprintf(b, sizeof b, "%.4g", replicated * 1e-12);
  line(name, a, b, packed > 0 ? replicated / packed : 1);
}

static void byte_line(const char *name, double packed, double replicated) {
  char a[32], b[32];
  line(name, dkv_tool_bytes(a, packed), dkv_tool_bytes(b, replicated), packed > 0 ? replicated / packed : 1);
}

static void print_text(const dkv_saving *s, const dkv_model_shape *m, const struct dkv_layout_flags *where) {
  const struct dkv_style *style = dkv_tool_style();
  const dkv_cost *p = &s->packed, *r = &s->replicated;
  printf("model: L=%d C=%d F=%d V=%d H=%d Hkv=%d D=%d, %d bytes an element\n\n", m->layers, m->width, m->mlp_width,
         m->vocabulary, m->heads, m->kv_heads, m->head_dim, m->element_bytes);
  printf("%s  %-34s %18s %18s %9s%s\n", style->title, "", "packed", "replicated", "ratio", style->off);
  count_line("rows in every layer", p->rows, r->rows);
  count_line("attention pairs", p->pairs, r->pairs);
  count_line("rows through the LM head", p->predictions, r->predictions);
  tera_line("linear layers, forward [TFLOP]", p->linear_flops, r->linear_flops);
  tera_line("attention, forward [TFLOP]", p->pair_flops, r->pair_flops);
  tera_line("LM head, forward [TFLOP]", p->head_flops, r->head_flops);
  byte_line("attention tensors of one layer", p->attention_bytes, r->attention_bytes);
  byte_line("activations kept for backward", p->activation_bytes, r->activation_bytes);
  printf("\n  rho = %.4f (tokens)   A = %.4f (attention pairs)   training step: %.2f times fewer FLOPs\n", s->rho,
         s->pair_ratio, s->step_ratio);
  if (where->lengths == NULL && where->responses > 0)
    printf("  closed form: rho = N(P+R)/(P+NR) = %.4f   A = N(P+R)^2/(P^2+NR(2P+R)) = %.4f\n",
           dkv_cost_rho((double)where->prompt, (double)where->responses, (double)where->response_length),
           dkv_cost_pair_ratio((double)where->prompt, (double)where->responses, (double)where->response_length));
  if (p->rows == r->rows) printf("  nothing is shared here, so nothing is saved\n");
}

static cJSON *cost_json(const dkv_cost *c) {
  cJSON *out = cJSON_CreateObject();
  cJSON_AddNumberToObject(out, "rows", (double)c->rows);
  cJSON_AddNumberToObject(out, "pairs", (double)c->pairs);
  cJSON_AddNumberToObject(out, "predictions", (double)c->predictions);
  cJSON_AddNumberToObject(out, "linear_flops", c->linear_flops);
  cJSON_AddNumberToObject(out, "pair_flops", c->pair_flops);
  cJSON_AddNumberToObject(out, "head_flops", c->head_flops);
  cJSON_AddNumberToObject(out, "attention_bytes", c->attention_bytes);
  cJSON_AddNumberToObject(out, "activation_bytes", c->activation_bytes);
  return out;
}

static dkv_status print_json(const dkv_saving *s) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "dualkv.cost.1");
  cJSON_AddItemToObject(root, "packed", cost_json(&s->packed));
  cJSON_AddItemToObject(root, "replicated", cost_json(&s->replicated));
  cJSON_AddNumberToObject(root, "rho", s->rho);
  cJSON_AddNumberToObject(root, "A", s->pair_ratio);
  cJSON_AddNumberToObject(root, "step_ratio", s->step_ratio);
  char *text = cJSON_Print(root);
  cJSON_Delete(root);
  DKV_REQUIRE(text != NULL, DKV_ERR_NOMEM, "dualkv cost: no memory for the JSON text");
  puts(text);
  cJSON_free(text);
  return DKV_OK;
}

int dkv_cmd_cost(int argc, char *const *argv) {
  struct dkv_layout_flags where = DKV_NO_LAYOUT_FLAGS;
  struct dkv_text_list operands;
  struct model_flags m = {36, 4096, 12288, 151936, 32, 8, 128, 2};
  bool json = false;
  const double most = 1 << 24;
  const struct dkv_flag flags[] = {
      DKV_LAYOUT_FLAGS(where),
      DKV_FOREST_FLAGS(where),
      {NULL, DKV_FLAG_TITLE, NULL, NULL, "the model (Qwen3-8B by default):", 0, 0},
      {"layers", DKV_FLAG_INT, &m.layers, "L", "decoder layers", 1, most},
      {"width", DKV_FLAG_INT, &m.width, "C", "model width", 1, most},
      {"mlp-width", DKV_FLAG_INT, &m.mlp, "F", "width inside the MLP", 1, most},
      {"vocabulary", DKV_FLAG_INT, &m.vocabulary, "V", "number of tokens", 1, most},
      {"heads", DKV_FLAG_INT, &m.heads, "H", "query heads", 1, most},
      {"kv-heads", DKV_FLAG_INT, &m.kv_heads, "K", "key heads", 1, most},
      {"head-dim", DKV_FLAG_INT, &m.head_dim, "D", "head size", 1, most},
      {"element-bytes", DKV_FLAG_INT, &m.bytes, "B", "bytes of a stored activation, 2 or 4", 2, 4},
      {"json", DKV_FLAG_SWITCH, &json, NULL, "print JSON", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_layout layout = {0};
  dkv_saving saving;
  dkv_status status = dkv_args_parse("cost", flags, argc, argv, &operands);
  const dkv_model_shape shape = {(int32_t)m.layers, (int32_t)m.width,    (int32_t)m.mlp,      (int32_t)m.vocabulary,
                                 (int32_t)m.heads,  (int32_t)m.kv_heads, (int32_t)m.head_dim, (int32_t)m.bytes};
  if (status == DKV_OK && m.heads % m.kv_heads != 0)
    status =
        dkv_fail(DKV_ERR_SHAPE, "dualkv cost: --heads %d is no multiple of --kv-heads %d", shape.heads, shape.kv_heads);
  if (status == DKV_OK) status = dkv_tool_layout(&layout, "cost", &operands, &where);
  if (status == DKV_OK) status = dkv_cost_saving(&saving, &layout, &shape);
  if (status == DKV_OK && json) status = print_json(&saving);
  else if (status == DKV_OK) print_text(&saving, &shape, &where);
  dkv_layout_free(&layout);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
