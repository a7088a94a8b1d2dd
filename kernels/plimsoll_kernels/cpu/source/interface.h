// The plain C interface: records of pointers and integers, the same in every instruction set (records.py mirrors them).
//
// float32 unless said otherwise; "elements" are what the model runs in: float32 or bfloat16. Rows of a step stand one
// after the other, sequence by sequence.
#pragma once

#include <cstdint>

extern "C" {

// y = x W^T + b. The weight is packed (panels.h); `gated` ones hold two weights of `columns` rows, taking turns.
struct PlimsollLinear {
  const void *weight;
  const float *bias;  // null: none; a gated one has the bias of both weights, one after the other
  int32_t inputs;
  int32_t columns;
};

struct PlimsollLayer {
  PlimsollLinear query_key_value, output, gate_up, down;
  const float *attention_norm, *mlp_norm;
  const float *attention_post_norm, *mlp_post_norm;  // null: none
  const float *query_norm, *key_norm;                // over each head; null: none
  int32_t rope;                                      // which table of the step
  int32_t heads, kv_heads, head_dim;
  int32_t window;  // tokens a query sees, itself included; 0: all
  float scale, softcap;  // softcap 0: none
};

struct PlimsollModel {
  const struct PlimsollLayer *layers;
  int32_t num_layers;
  int32_t vocab, hidden, inner;
  const void *embedding;         // elements [vocab, hidden], or null:
  const void *packed_embedding;  // the same as a product's weight, for models whose output layer it is as well
  const float *final_norm;
  float norm_eps, embedding_scale;
  int32_t activation;  // 0 silu, 1 gelu_tanh
  int32_t max_heads_width;  // the widest query_key_value of all layers, in columns
};

// The paged cache: for each layer keys and values, elements [kv_heads, num_blocks, block_size x head_dim], of which
// the last dimension is contiguous and the others are so many elements apart.
struct PlimsollCache {
  void *const *keys;
  void *const *values;
  const int64_t *head_strides;   // of each layer
  const int64_t *block_strides;
  int32_t block_size;
};

struct PlimsollStep {
  int32_t rows, sequences;
  const int64_t *tokens;              // [rows]
  const int64_t *slots;               // [rows] block x block_size + offset
  const int64_t *positions;           // [rows]
  const float *const *turns;          // for each rope [positions, 2, head_dim / 2]: cosines, then sines
  const int32_t *first_rows;          // [sequences + 1]
  const int32_t *contexts;            // [sequences] tokens in the cache after this step
  const int32_t *blocks;              // block tables, one after the other
  const int32_t *first_blocks;        // [sequences] where each begins
  void *hidden;                       // elements [rows, hidden]: the result, normed
  void *workspace;                    // plimsoll_workspace bytes, aligned to 64
  double *seconds;                    // null, or [PLIMSOLL_OPS] to which each op's time is added
};

enum PlimsollOp {
  PLIMSOLL_EMBED,
  PLIMSOLL_NORM,
  PLIMSOLL_QKV,
  PLIMSOLL_ROPE,
  PLIMSOLL_ATTENTION,
  PLIMSOLL_OUTPUT,
  PLIMSOLL_GATE_UP,
  PLIMSOLL_DOWN,
  PLIMSOLL_OPS
};

// Rows of logits and what is asked of each; `best` and `tokens` are the result.
struct PlimsollSampling {
  int32_t rows, width;
  int64_t stride;            // floats from a row to the next
  const float *logits;
  const float *temperature;  // [rows] 0, or no normal float: take the largest
  const int32_t *top_k;      // [rows] 0, or the width and more: all
  const float *top_p;        // [rows] 1: all
  const float *min_p;        // [rows] 0: all
  const double *uniform;     // [rows] in [0, 1)
  float *best;               // [rows] the largest logit, NaN if there is one
  int64_t *tokens;           // [rows]
  void *workspace;           // sampling_workspace bytes, aligned to 64
};

// Rows of logits, a token of each, and how many of the most likely ones are wanted beside it.
struct PlimsollReports {
  int32_t rows, width;
  int64_t stride;               // floats from a row to the next
  const float *logits;
  const int64_t *tokens;        // [rows]
  const int32_t *alternatives;  // [rows] at most `most`, and the width
  int32_t most;
  float *chosen;                // [rows] log probabilities of the tokens; NaN where the largest logit is not finite
  int64_t *ranks;               // [rows] 1: no logit is larger
  int64_t *top_tokens;          // [rows, most] the most likely first
  float *top;                   // [rows, most] their log probabilities
  void *workspace;              // sampling_workspace bytes, aligned to 64
};

// One instruction set's functions.
struct PlimsollKernels {
  const char *name;
  int32_t lanes;
  int64_t (*packed_elements)(int32_t columns, int32_t inputs, int32_t gated);
  void (*pack)(const void *weight, int32_t columns, int32_t inputs, void *packed, int32_t threads);
  void (*pack_gated)(const void *gate, const void *up, int32_t columns, int32_t inputs, void *packed, int32_t threads);
  void (*linear)(const void *x, int32_t rows, const struct PlimsollLinear *linear, float *out, int32_t threads);
  int64_t (*workspace)(const struct PlimsollModel *model, int32_t rows, int32_t threads);
  void (*forward)(const struct PlimsollModel *model, const struct PlimsollCache *cache, const struct PlimsollStep *step,
                  int32_t threads);
  int64_t (*attention_workspace)(int32_t head_dim, int32_t threads);
  void (*attention)(const void *query, const void *key, const void *value, void *out, const struct PlimsollLayer *layer,
                    int32_t index, const struct PlimsollCache *cache, const struct PlimsollStep *step, int32_t threads);
  int64_t (*sampling_workspace)(int32_t width, int32_t threads);
  void (*sample)(const struct PlimsollSampling *batch, int32_t threads);
  void (*report)(const struct PlimsollReports *batch, int32_t threads);
  double (*peak)(int32_t threads);  // operations a second of multiplications that wait for nothing
};

}  // extern "C"
