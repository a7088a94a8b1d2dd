// The plain C interface: records of pointers and integers, the same in every instruction set (records.py mirrors them).
//
// float32 unless said otherwise; "elements" are what the model runs in: float32 or bfloat16. Rows of a step stand one
// after the other, sequence by sequence.
#pragma once

#include <cstdint>

#include "columns_ops.h"
#include "latent_ops.h"

extern "C" {

// y = x W^T + b. The weight is packed (panels.h); `gated` ones hold two weights of `columns` rows, taking turns.
struct PlimsollLinear {
  const void *weight;
  const float *bias;  // null: none; a gated one has the bias of both weights, one after the other
  int32_t inputs;
  int32_t columns;
};

// Attention over a layer of the cache.
struct PlimsollShape {
  int32_t heads, kv_heads, head_dim;
  int32_t window;        // tokens a query sees, itself included; 0: all
  int32_t chunk;         // a query sees tokens from the last multiple of it on; 0: all
  int32_t coarse;        // 1: what slopes add is rounded, see scores.h
  int32_t whole;         // 1: it also sees those that follow it, less than `window` away; sequences are whole in a step
  float scale, softcap;  // softcap 0: none
  const float *slopes;   // [heads] ALiBi: slope x (key's position - query's) is added to scores; null: nothing
  const float *sinks;    // [heads] the score of one key more, whose value is zero; null: none
  int32_t latent;        // keys are values, of which so many dimensions are summed, whole vectors; 0: they are not
  int32_t apart;         // where they are: from a head's result to the next, at least `latent`, between them zeros
};

// Where values lie in a step's workspace, one after the other: [rows, width] floats, or operands (element.h).
struct PlimsollPlace {
  int32_t operands;   // 0: floats
  int32_t width;      // of the widest of them
  int32_t narrowest;  // what lies beyond this in a row of operands is zeros when a step begins: products read of it
};

enum { PLIMSOLL_PLACES = 32 };  // at most

// What an op writes to in place of a place: the step's `hidden`.
enum { PLIMSOLL_RESULT = -1 };

// floats = a row of the table for each token x scale. The first op of every model.
struct PlimsollEmbed {
  const void *table;   // elements [vocab, width], or null:
  const void *packed;  // the same as a product's weight, for models whose output layer it is as well
  const void *texts;   // null, or elements [texts, width]: a row of these is added, of text token / vocab of a prompt
  int32_t target, width;
  int32_t vocab;       // where there are texts
  float scale;
};

// x += a row of the table for each position; x is floats.
struct PlimsollPositions {
  const void *table;  // elements [positions, width]
  int32_t target, width;
  int32_t first;  // the first position's row
};

// y = norm(x); x is floats at `source`, y whatever lies at `target`.
struct PlimsollNorm {
  const float *weight, *bias;  // bias null: none
  int32_t source, target, width;
  int32_t first;  // the column where both begin
  int32_t adds;   // 1: y += norm(x), floats
  int32_t norm;   // see PlimsollNormed
  float eps;
};

enum PlimsollNormed { PLIMSOLL_NORMED_AS_IS, PLIMSOLL_NORMED_RMS, PLIMSOLL_NORMED_LAYER };

// y = x W^T + b; x is operands.
struct PlimsollProduct {
  struct PlimsollLinear linear;
  int32_t source, target;
  int32_t into;        // see PlimsollInto
  int32_t activation;  // see PlimsollActivation
  float scale;         // of what is added
  float limit;         // floats are cut to [-limit, limit]
};

enum PlimsollInto {
  PLIMSOLL_INTO_FLOATS,  // y as floats
  PLIMSOLL_INTO_SUM,     // y x scale added to the floats there
  PLIMSOLL_INTO_GATED,   // activation(gate) x up as operands; the weight is gated
  PLIMSOLL_INTO_OPERANDS,  // activation(y) as operands
};

enum PlimsollActivation {
  PLIMSOLL_ACTIVATION_NONE,
  PLIMSOLL_ACTIVATION_SILU,
  PLIMSOLL_ACTIVATION_GELU_TANH,
  PLIMSOLL_ACTIVATION_GELU,
  PLIMSOLL_ACTIVATION_RELU,
  PLIMSOLL_ACTIVATION_RELU2,
  PLIMSOLL_ACTIVATION_SIGMOID
};

// What lies between a product and attention: norms over heads, the rotation, queries to operands, keys and values to
// the cache. `source` is floats [rows, heads + 2 kv_heads, head_dim], `target` operands [rows, heads, head_dim].
struct PlimsollHeads {
  struct PlimsollShape shape;
  const float *query_norm, *key_norm;  // over each head; null: none
  int32_t layer, source, target;
  int32_t norm;       // see PlimsollNormed
  int32_t norm_step;  // from a head's weight of the norm to the next one's; 0: all have one
  int32_t turned;     // 1: the norm comes after the rotation
  int32_t rope;       // which table of the step; -1: none
  int32_t rotated;    // so many dimensions turn, the first ones
  int32_t pairs;      // 1: each with its neighbour; 0: of one half with the other
  int32_t growth_offset;
  float eps;
  float growth, growth_every;  // queries x (1 + growth x log(1 + floor((position + offset) / every))); growth 0: as they are
};

// Queries at `source` attend to a layer's keys and values: operands [rows, heads, head_dim] both, or the results [rows,
// heads, apart].
struct PlimsollAttend {
  struct PlimsollShape shape;
  int32_t layer, source, target;
};

// target = source + added x scale, floats.
struct PlimsollAdd {
  int32_t source, added, target, width;
  float scale;
};

// Which experts compute a row, and what each of them weighs. `source` is floats [rows, hidden]; what is written are
// floats too: `shares` [rows, chosen], `numbers` [rows, chosen], whose bits are int32, and `scores`, of
// PLIMSOLL_SCORE_ROWS x experts floats a row or somewhat more (see there), which nobody else reads.
struct PlimsollRoute {
  const float *weight;      // [experts, hidden]
  const float *bias;        // [experts] added to logits; null: none
  const float *correction;  // [experts] added to scores where experts are chosen; null: none
  int32_t source, scores, shares, numbers;
  int32_t hidden, experts, chosen;
  int32_t rule;                       // see PlimsollRule
  int32_t groups, open_groups, best;  // of so many groups those are open whose best experts score most
  int32_t renormalised;               // 1: shares are divided by their sum, or by `least` where that is more
  float least;
  float scale;   // of shares, in the end
  float jitter;  // of the sparse mixer
};

enum PlimsollRule { PLIMSOLL_RULE_SOFTMAX, PLIMSOLL_RULE_SIGMOID, PLIMSOLL_RULE_SPARSE_MIXER };

// Rows of `scores`, of as many floats each as there are experts, up to a whole number of the widest vectors.
enum { PLIMSOLL_SCORE_ROWS = 4, PLIMSOLL_WIDEST = 16 };

// target = the weighed sum of what each row's chosen experts make of it x scale, or target += it; floats both, which
// may be the source then. An expert that no row has chosen is not read.
struct PlimsollExperts {
  struct PlimsollLinear gate_up, down;  // the first expert's, those of the others follow, as their biases do
  int32_t source, shares, numbers, target;
  int32_t experts, chosen;
  int32_t activation;     // see PlimsollActivation
  int32_t adds;           // 1: to what lies there
  int32_t gated;          // 1: gate_up is; 0: it has no gates, and what it gives is activated
  int32_t weighs_inputs;  // 1: rows are weighed, and not what experts make of them
  float scale;
  float alpha, limit;  // limit > 0: gates open otherwise, see clamped()
};

// y x sigmoid(x w), one number a row; x is floats [rows, inputs] at `source`, y floats [rows, width] at `target`.
struct PlimsollGate {
  const float *weight;  // [inputs]
  int32_t source, target, inputs, width;
};

enum PlimsollKind {
  PLIMSOLL_KIND_EMBED,
  PLIMSOLL_KIND_POSITIONS,
  PLIMSOLL_KIND_NORM,
  PLIMSOLL_KIND_PRODUCT,
  PLIMSOLL_KIND_HEADS,
  PLIMSOLL_KIND_ATTEND,
  PLIMSOLL_KIND_ADD,
  PLIMSOLL_KIND_ROUTE,
  PLIMSOLL_KIND_EXPERTS,
  PLIMSOLL_KIND_GATE,
  PLIMSOLL_KIND_SCALE,
  PLIMSOLL_KIND_MULTIPLY,
  PLIMSOLL_KIND_CONVOLVE,
  PLIMSOLL_KIND_GATED_NORM,
  PLIMSOLL_KIND_DUAL_SCAN,
  PLIMSOLL_KIND_DELTA_RULE,
  PLIMSOLL_KIND_SELECTIVE_SCAN,
  PLIMSOLL_KIND_GATED_RECURRENCE,
  PLIMSOLL_KIND_LATENT,
  PLIMSOLL_KIND_ABSORB,
  PLIMSOLL_KIND_EXPAND
};

// What a model does next.
struct PlimsollOp {
  int32_t kind;   // see PlimsollKind: which of the records below
  int32_t timed;  // to which of a step's `seconds` its time is added
  union {
    struct PlimsollEmbed embed;
    struct PlimsollPositions positions;
    struct PlimsollNorm norm;
    struct PlimsollProduct product;
    struct PlimsollHeads heads;
    struct PlimsollAttend attend;
    struct PlimsollAdd add;
    struct PlimsollRoute route;
    struct PlimsollExperts experts;
    struct PlimsollGate gate;
    struct PlimsollScale scale;
    struct PlimsollMultiply multiply;
    struct PlimsollConvolve convolve;
    struct PlimsollGatedNorm gated_norm;
    struct PlimsollDualScan dual_scan;
    struct PlimsollDeltaRule delta_rule;
    struct PlimsollSelectiveScan selective_scan;
    struct PlimsollGatedRecurrence gated_recurrence;
    struct PlimsollLatent latent;
    struct PlimsollAbsorb absorb;
    struct PlimsollExpand expand;
  };
};

struct PlimsollModel {
  const struct PlimsollOp *ops;
  const struct PlimsollPlace *places;
  int32_t num_ops, num_places;
};

// The paged cache: for each layer keys and values, elements [kv_heads, num_blocks, block_size x head_dim], of which
// the last dimension is contiguous and the others are so many elements apart.
struct PlimsollCache {
  void *const *keys;
  void *const *values;
  const int64_t *head_strides;   // of each layer
  const int64_t *block_strides;
  const int32_t *groups;         // of each layer, whose tables of a step say where its tokens are
  int32_t block_size;
};

// Where a group of layers has the tokens of a step. Attention counts positions from a table's first token on; a row's
// own, by which it turns, is larger by what the group has given back.
struct PlimsollGroup {
  const int64_t *cells;         // [rows] block x block_size + offset
  const int32_t *contexts;      // [sequences] tokens in the table after this step
  const int32_t *blocks;        // block tables, one after the other
  const int32_t *first_blocks;  // [sequences] where each begins
};

struct PlimsollStep {
  int32_t rows, sequences;
  const int64_t *tokens;              // [rows]
  const int64_t *positions;           // [rows]
  const float *const *turns;          // for each rope [positions, 2, rotated / 2]: cosines, then sines
  const struct PlimsollGroup *groups;
  const int32_t *first_rows;          // [sequences + 1]
  void *hidden;                       // elements [rows, hidden]: the result, normed
  void *workspace;                    // plimsoll_workspace bytes, aligned to 64
  double *seconds;                    // null, or [PLIMSOLL_TIMED_COUNT] to which each op's time is added
  void *const *states;                // of each state a tensor with a row for whoever may keep one
  const int32_t *state_rows;          // [sequences] the row of each
};

enum PlimsollTimed {
  PLIMSOLL_TIMED_EMBED,
  PLIMSOLL_TIMED_NORM,
  PLIMSOLL_TIMED_QKV,
  PLIMSOLL_TIMED_ROPE,
  PLIMSOLL_TIMED_ATTENTION,
  PLIMSOLL_TIMED_OUTPUT,
  PLIMSOLL_TIMED_ROUTE,
  PLIMSOLL_TIMED_EXPERTS,
  PLIMSOLL_TIMED_GATE_UP,
  PLIMSOLL_TIMED_DOWN,
  PLIMSOLL_TIMED_STATE,
  PLIMSOLL_TIMED_COUNT
};

// Rows of logits and what is asked of each; `best` and `tokens` are the result. Logits that a mask forbids become
// -infinity where they lie (NaNs stay).
struct PlimsollSampling {
  int32_t rows, width;
  int64_t stride;            // floats from a row to the next
  float *logits;
  const float *temperature;  // [rows] 0, or no normal float: take the largest
  const int32_t *top_k;      // [rows] 0, or the width and more: all
  const float *top_p;        // [rows] 1: all
  const float *min_p;        // [rows] 0: all
  const double *uniform;     // [rows] in [0, 1)
  const int32_t *masked;     // [rows] which mask a row has, -1: none; or null where no row has one
  const uint32_t *masks;     // [masks, (width + 31) / 32] bit t % 32 of word t / 32: token t may be chosen
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
  void (*attention)(const void *query, const void *key, const void *value, void *out, const struct PlimsollShape *shape,
                    int32_t layer, const struct PlimsollCache *cache, const struct PlimsollStep *step, int32_t threads);
  int64_t (*sampling_workspace)(int32_t width, int32_t threads);
  void (*sample)(const struct PlimsollSampling *batch, int32_t threads);
  void (*report)(const struct PlimsollReports *batch, int32_t threads);
  double (*peak)(int32_t threads);  // operations a second of multiplications that wait for nothing
};

}  // extern "C"
