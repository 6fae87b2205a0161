/* The C interface of draftwood's native kernels. Functions that can fail return null or non-zero; dw_error() says why,
   in the thread that called. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define DW_API __attribute__((visibility("default")))

enum { DW_VERSION = 17 };

DW_API int dw_version(void);
DW_API const char* dw_error(void);
/* The kernel set in use, empty where DRAFTWOOD_KERNELS names none that can run here; those that can, best first. */
DW_API const char* dw_kernels(void);
DW_API const char* dw_runnable(void);

/* A weight [n][k] packed for the kernels, from floats or (half) bfloat16; bias [n] or null. Types: 0 float32,
   1 bfloat16, 2 float16, 3 int4 and 4 int8 with scales for groups of 32 inputs. */
DW_API void* dw_matrix(int type, int64_t n, int64_t k, const void* weight, int half, const float* bias, int threads);
/* Whole numbers [n][k] in groups of 32 inputs: weight = scale * (number - zero) + shift, with scales, shifts and zeros
   [n][ceil(k / 32)], null where a type has none. Types: 3 int4 (numbers 0..15, float16 scales and shifts), 4 int8 (float16
   scales), 16 uint4 (0..15, float16 scales, zeros), 17 and 18: uint4 and int8 with bfloat16 scales. */
DW_API void* dw_matrix_grouped(int type, int64_t n, int64_t k, const uint8_t* numbers, const uint16_t* scale,
                               const uint16_t* shift, const uint8_t* zero, const float* bias, int threads);
/* Outputs that lie in memory as a GGUF file has them. */
typedef struct {
  int64_t format /* GGUF's number for its type; 256: FP8 (e4m3), a float scale before the numbers of 128 inputs, the last ones' too */, rows, stride /* bytes from one output to the next */;
  const void* data;
  const int64_t* order; /* [rows] which row of `data` each output is, or null: as they lie */
  int64_t mapped;       /* 1: data lies in a mapped file that nobody has written to, whose pages are let go once read */
} dw_stored;
/* A weight of k inputs whose outputs are those of the parts, one after the other, in their own bits. Parts of other types
   must begin at a multiple of 16 outputs. */
DW_API void* dw_matrix_stored(const dw_stored* part, int parts, int64_t k, const float* bias, int threads);
/* Input number i of a matrix of whole numbers becomes number order[i] of [k], each of which comes once: rows are read so
   before they are rounded. For a matrix that is not in use yet. */
DW_API int dw_matrix_order(void* matrix, const int64_t* order);
/* out [count][k]: the weights of some outputs, as floats */
DW_API int dw_matrix_rows(const void* matrix, int64_t count, const int64_t* row, float* out, int threads);
DW_API size_t dw_matrix_bytes(const void* matrix);
DW_API void dw_matrix_free(void* matrix);
/* out [rows][n] = x [rows][k] W^T + bias */
DW_API int dw_matrix_apply(const void* matrix, int64_t rows, const float* x, float* out, int threads);

/* out [rows][n]: the softmax of scale * x, row by row. Both may be the same memory. */
DW_API int dw_softmax(int64_t rows, int64_t n, const float* x, float scale, float* out);
/* sums [ceil(n / block)] of so many weights each, added up as doubles */
DW_API int dw_block_sums(int64_t n, int64_t block, const float* weight, double* sums);
/* The places in weights [n] >= 0 where their running sum, in doubles, passes u [count] times the whole one; u in [0, 1). A place
   of weight 0 is never given. Returns 1 where the sum is 0 or not finite. */
DW_API int dw_draws(int64_t n, const float* weight, int64_t count, const double* u, int64_t* place);
/* Such a place for the weights e^(scale * x) of which x[best] is the largest, or -1; *log_prob: the logarithm of its share. */
DW_API int64_t dw_draw_logits(int64_t n, const float* x, int64_t best, float scale, double u, double* log_prob);
/* The share of each beam and token, e^(scale * (score + x - log_sum)) over the sum of all, where log_sum is that of e^x, is
   factor * e^(scale * (x - top)) with the top and factor [beams] given here. sums [beams][ceil(n / 512)]: those of so many tokens
   each, over the factor. A beam without x (null) has ended: all that it has is one share, its factor; its first sum is 1, the
   others 0. Returns 1 where shares are not finite. */
DW_API int dw_shares(int64_t beams, int64_t n, const float* const* x, const double* score, const double* log_sum, float scale, double* top, double* factor, double* sums);
/* out [beams][ends + n]: all shares; with `ends` 1 a place comes before the tokens', of an ended beam's one share. */
DW_API int dw_shares_all(int64_t beams, int64_t n, int ends, const float* const* x, float scale, const double* top, const double* factor, float* out);
/* place [draws]: as dw_draws of all shares, of which those at the ascending places `where` [changed] are `weight` instead, which is
   no more than they were. */
DW_API int dw_shares_draws(int64_t beams, int64_t n, int ends, const float* const* x, float scale, const double* top, const double* factor, const double* sums,
                           int64_t changed, const int64_t* where, const double* weight, int64_t draws, const double* u, int64_t* place);
/* out [n] = max(0, factor * p - q), q or null for zeros, and 0 at `without` if it is a place; returns the sum. */
DW_API double dw_excess(int64_t n, const float* p, const float* q, float factor, int64_t without, float* out);

/* place, value [rows][count]: of each row x [n] the places of the largest numbers above -inf, the largest first, of equals the first,
   and these numbers; behind the last of them -1. A NaN counts as -inf. */
DW_API int dw_leading(int64_t rows, int64_t n, const float* const* x, int64_t count, int64_t* place, float* value);

/* What all layers of a model share. Pointers stay the caller's and must outlive the model. */
typedef struct {
  int32_t width, vocabulary, layer_norm /* the last norm, else root mean square */, half_positions, position_offset;
  float eps, logit_softcap /* 0: none */, logit_scale, embedding_scale;
  const void *embeddings /* a matrix of [vocabulary] outputs, or null: the model reads hidden states */, *positions /* [..][width], or null */;
  const float *norm, *norm_bias;
  const void* head;
  int32_t inputs /* of a token: as many as there are layers */, input_width; /* per-layer embeddings: an input is the sum of
      the table's, times input_scale, and of the normalised one that the projection makes of the embedding, over sqrt(2) */
  float input_scale;
  const void *input_table /* matrix of [vocabulary] outputs of inputs * input_width, or null */, *input_projection;
  const float* input_norm; /* [input_width] */
} dw_shape;

enum { DW_ATTENTION, DW_FEED_FORWARD, DW_EXPERTS, DW_PER_LAYER_INPUT }; /* kinds of parts */
enum { DW_RECURRENT = 16 };                            /* set by dw_model_recurrence */
enum { DW_ONE_NORM, DW_HEAD_NORMS, DW_WHOLE_NORM };    /* of queries and keys: one weight [head_dim] for all heads, own ones
                                                          [heads][head_dim], or a norm over all heads together */

/* A mixture of experts. Of `count` experts a row takes those of the `chosen` largest scores plus selection_bias: the softmax
   of the router's outputs, or the sigmoid of each; of several groups from those with the largest sums of two only. The
   shared expert, the last one, is everyone's. */
typedef struct {
  int32_t count, chosen, sigmoid /* 2: and weights multiply what experts read, not what they make */, normalised /* weights are divided by their sum */, groups, chosen_groups, shared;
  int32_t shared_gate /* the router's last output is the shared expert's, whose sigmoid is its weight */;
  float scale /* of weights */, limit /* of what gates and ups are cut to, and 1 is added to ups; 0: none */;
  const void* router;          /* matrix of [count + shared_gate] outputs */
  const float* selection_bias; /* [count], or null */
  const void *const *up, *const *down; /* [count + shared] matrices; up: gates and ups, or ups as many as down reads */
  /* Beside an MLP, which is the shared expert: the part's norm is that of its rows. */
  const float* router_norm; /* [width] of the router's rows, or null: all read the rows that the part's norm makes */
  const float *own_norm /* of the experts' rows */, *own_post_norm /* of their sum */, *shared_post_norm /* of what the MLP makes */;
  const float* expert_scale; /* [count] of weights */
} dw_experts;

/* Latent attention: the part's first product makes queries, or a latent of them, then a latent of keys and values and what
   all heads' keys begin with [rotary_dim]. Of the latents, normalised, further products make the heads' queries, and the rest
   of their keys, then their values. */
typedef struct {
  int32_t q_rank /* 0: queries have no latent */, kv_rank;
  float eps;
  const void *q_up /* matrix, or null */, *kv_up;
  const float *q_norm, *kv_norm;
} dw_latent;

/* One half of a layer: attention (up = qkv, down = o), feed-forward (up = gate and up, or up), experts (no up, no down) or
   what the token's input of the layer gives (up = gate). */
typedef struct {
  int32_t kind, joined /* reads the rows that the part before has read, and not its sum */, layer_norm;
  int32_t heads, kv_heads, head_dim, rotary_dim /* 0: positions are not rotated */;
  int32_t window /* positions that are seen, own included; 0: all; less: from the first on of the chunk of -window that has the own one */, rope /* which table */, keys, values /* planes */;
  int32_t borrowed /* keys and values are those of an earlier layer: up = q */, gate /* each head's query is followed by a
                      gate [head_dim], whose sigmoid multiplies what the head gets */;
  int32_t qk_norm, late_norm /* behind the rotation */, value_norm /* values are divided by their root mean square */;
  int32_t activation, gated;
  float eps, multiplier /* of what is added to the rows */, scale, softcap /* 0: none */, clip /* of queries, keys, values; 0: none */;
  const void *up, *down;
  const float *norm, *norm_bias, *post_norm, *post_norm_bias; /* null where there is none */
  const float *q_norm, *q_norm_bias, *k_norm, *k_norm_bias;
  const float* sinks; /* [heads] a score that takes part in the softmax and adds nothing, or null */
  const dw_experts* experts;
  const float* scalar; /* [1] what the rows behind the part are multiplied by, or null */
  float gate_scale; /* of a feed-forward's gates, before their activation */
  int32_t input;    /* number of the input */
  int32_t value_dim;                   /* components of a head's values; 0: head_dim */
  int32_t growth_length, growth_start; /* queries are multiplied by 1 + growth * log(1 + (position + start) / length), whole numbers */
  float growth;
  int32_t group_top;       /* of a mixture: how many scores of a group are summed; 0: 2 */
  float jitter;            /* of a mixture: more than 0 where a sparse mixer chooses */
  int64_t bias_stride;
  const float* bias;       /* [heads][bias_stride]: scores get a position's less the row's own; readable to a multiple of 16; or null */
  const float* inner_norm; /* of what the second product reads, or null */
  const float* numbers;    /* [4] of the activation, or null */
  const dw_latent* latent; /* or null */
} dw_part;

/* Rows of one forward. Each belongs to a segment and sees the first `seen` of its segment's trunk slots, then its path,
   all in order of position; its own slot, where its key and value go, comes last. */
typedef struct {
  int32_t rows, segments, slots /* of the planes */, reach /* positions that tables have */;
  const int64_t *token /* [rows] */, *position;
  const int32_t *slot /* [rows] */, *seen, *path_end /* where the row's part of path ends */, *segment, *path;
  const float* hidden; /* [rows][width]: input instead of tokens, or null */
  const int32_t *base, *capacity; /* [segments] of their extents */
  const int32_t* trunk_length;    /* [segments] */
  const int32_t* const* trunk;     /* [segments] */
  void* const* planes;
  const float* const* cos; /* [tables]: [position][rotary_dim / 2] */
  const float* const* sin;
  int32_t start, stop; /* layers */
  int32_t wanted_count, wanted_first;
  const int64_t* wanted; /* rows whose logits and states are asked for; null: wanted_count from wanted_first on */
  float* logits;         /* [wanted_count][vocabulary], or null */
  float* output;         /* [rows][width] output of layer stop - 1, or null */
  int32_t states_count;
  const int32_t* states_after; /* layers; after the last one the final norm is applied */
  float* const* states;        /* [wanted_count][width] each */
  int32_t threads, plane_type; /* of keys and values: 0 float32 and 1 bfloat16 [slots][kv_heads][head_dim]; 2 int8: a head's row
                                  is a float32 and int8 [head_dim] to multiply by it, up to the next multiple of 4 bytes */
  const float* beside; /* [rows][width], where a part's first product reads it before the rows: its matrix is twice as wide */
  const float* given;  /* [rows][columns of the entry], or null: there is an entry */
  int32_t reads_count;
  const int32_t* reads_after; /* as states_after */
  float* const* reads;        /* [rows][width] each, of all rows */
  int64_t* best;   /* [wanted_count] the token of each row's largest logit, the first among equals */
  float* log_sums; /* [wanted_count] the logarithm of the sum of e^logit; both with logits only */
  int32_t leading_count; /* of each row, as dw_leading; 0: none are asked for */
  int64_t* leading;      /* [wanted_count][leading_count] */
  float* leading_logits; /* likewise */
} dw_batch;

/* How the rows of a head begin that reads states of another model: `fc` makes one of what is given, unless its last number is
   NaN: then the row begins with that state. What lies beside is the normalised embedding of the token, or what batch.beside
   has in its place. */
typedef struct {
  const void *fc, *embeddings /* matrix of a vocabulary's outputs; null: batch.beside is given */;
  const float *beside_norm /* [width] */, *state_norm /* [width] of the rows, or null */, *given_norm /* [columns], or null */;
  int32_t groups; /* of the numbers that are given: each is normalised by itself */
  float eps;
} dw_entry;

/* A recurrent mixer (dw_part: up = the product before its steps, down = the one behind them). What a step is given of a
   token are its `inputs`: the convolution's channels, then what its gates are made of. Heads of values share keys, as in
   attention; channels lie in the order query, key, value (delta) or value, key, query (state space). The first product
   makes gates [value_heads * value_dim], then inputs; of a convolution three times the channels: gates before, gates
   behind, values. A state is the convolution's window [kernel - 1][channels], then [value_heads][key_dim][value_dim]. */
enum { DW_DELTA, DW_STATE_SPACE, DW_CONVOLUTION };
typedef struct {
  int32_t kind, kernel, channels, inputs, key_heads, key_dim, value_heads, value_dim;
  int32_t norm_groups, gate_first;     /* of the norm behind the steps */
  float eps, step_least, step_most;
  int64_t input_at, state_at;          /* numbers before this layer's in a token's inputs, and in a state */
  const float *conv /* [channels][kernel], oldest first; copied */, *conv_bias, *decay /* [value_heads]: of a step of 1, its logarithm */, *step_bias,
      *norm /* or null */, *skip, *scale /* of what the first product makes, or null */;
  int32_t tiled; /* value head h has key head h % key_heads, not one for each run of neighbours */
} dw_recurrence;

/* Steps of a forward's recurrent layers, in depth-first order; walk n has those from end[n - 1] to end[n]. */
typedef struct {
  int32_t walks, branches /* states that wait for another child, at most */, starts_count, kept_count, saved_count, pool_rows;
  const int32_t* end;
  const int32_t *parent /* step that each goes on from; -1 - i: it begins from starts[i] */, *source /* row; -1 - i: row i of the pool */;
  const int32_t *keep /* number of the kept state it becomes, or -1 */, *branch /* 1: another step than the next one goes on from it */;
  const float* const* starts; /* null: no token */
  float* const* kept;
  float* pool; /* [pool_rows][pool_stride]: inputs of tokens */
  int64_t pool_stride;
  const int32_t *saved /* [saved_count] rows whose inputs are put */, *places /* into these rows of the pool */;
} dw_walks;

/* Appends a recurrent mixer to a layer; a forward with such layers is given its walks. */
DW_API int dw_model_recurrence(void* model, int layer, const dw_part* part, const dw_recurrence* recurrence);
DW_API int dw_forward_walks(void* model, const dw_batch* batch, const dw_walks* walks);

DW_API void* dw_model(const dw_shape* shape, int layers);
DW_API int dw_model_part(void* model, int layer, const dw_part* part); /* appends to the layer */
DW_API int dw_model_entry(void* model, const dw_entry* entry);
/* The outputs of the head are the tokens [shape.vocabulary] of a vocabulary of `count`; others get the logit `absent`. */
DW_API int dw_model_tokens(void* model, const int64_t* token, int64_t count, float absent);
DW_API int dw_model_embedding_norm(void* model, const float* weight, const float* bias); /* of embeddings, of the last norm's kind */
DW_API void dw_model_free(void* model);
DW_API int dw_forward(void* model, const dw_batch* batch);

#ifdef __cplusplus
}
#endif
