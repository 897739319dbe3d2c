/* treadle's kernels for any program, as a C99 interface that needs neither torch nor Python. The
 * library is libtreadle_kernels.so; docs/interop.md has recipes for NumPy, CuPy, PyCUDA, Numba and
 * JAX.
 *
 * Functions that can fail return a status. If it is not TREADLE_OK, treadle_error_text() gives the
 * reason in one sentence. A call that returns TREADLE_INVALID or TREADLE_UNSUPPORTED has written
 * and launched nothing; after any other error the outputs are undefined. All functions may be
 * called from any thread. The library copies no array and keeps no pointer: arrays, workspaces and
 * streams belong to the caller. A call on CUDA returns when its kernels are in the stream.
 */
#ifndef TREADLE_KERNELS_H
#define TREADLE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TREADLE_API __attribute__((visibility("default")))
#else
#define TREADLE_API
#endif

/* Increases when a struct gets a new field or when the library gets a new function. Existing
 * functions keep their meaning. */
#define TREADLE_KERNELS_VERSION 1

/* ---- status */

enum {
  TREADLE_OK = 0,
  TREADLE_INVALID = 1,     /* an argument breaks a rule of this header */
  TREADLE_UNSUPPORTED = 2, /* this build has no kernel for these arguments on this device */
  TREADLE_CUDA_ERROR = 3,  /* CUDA reported an error */
  TREADLE_NO_MEMORY = 4
};

/* The text of the last error in this thread; "" if there was none. The pointer is valid until the
 * thread's next call. */
TREADLE_API const char* treadle_error_text(void);

/* TREADLE_KERNELS_VERSION of the library. If it is less than the header's, the library lacks some
 * functions or fields of the header. */
TREADLE_API int treadle_kernels_version(void);

/* One line of JSON: version, cuda (the toolkit's version, or null), archs, sources (a hash),
 * compiler, isa (the instruction set of the CPU functions in this process). */
TREADLE_API const char* treadle_kernels_info(void);

/* ---- arrays and where they are */

/* The dtype of an array: the fields of DLPack's DLDataType in one number, code | bits << 8 |
 * lanes << 16. These are the bytes of a DLDataType in memory, read as a little-endian number. */
#define TREADLE_BOOL 0x10806u
#define TREADLE_UINT8 0x10801u
#define TREADLE_INT8 0x10800u
#define TREADLE_INT16 0x11000u
#define TREADLE_INT32 0x12000u
#define TREADLE_INT64 0x14000u
#define TREADLE_FLOAT16 0x11002u
#define TREADLE_BFLOAT16 0x11004u
#define TREADLE_FLOAT32 0x12002u
#define TREADLE_FLOAT64 0x14002u

#define TREADLE_MAX_DIMS 25

typedef struct treadle_array {
  size_t struct_size;     /* sizeof(treadle_array), set by the caller, as in every struct here */
  void* data;             /* address of element [0, 0, ...]; may be NULL if a size is 0 */
  const int64_t* sizes;   /* [ndim], slowest dimension first; may be NULL if ndim is 0 */
  const int64_t* strides; /* [ndim], in elements; may be 0 or negative; NULL: contiguous */
  int32_t ndim;           /* at most TREADLE_MAX_DIMS */
  uint32_t dtype;
} treadle_array;

enum { TREADLE_CPU = 1, TREADLE_CUDA = 2 }; /* DLPack's numbers */

/* The device that holds all arrays of a call, and how the call runs. */
typedef struct treadle_device {
  size_t struct_size;
  int32_t type;    /* TREADLE_CPU or TREADLE_CUDA */
  int32_t index;   /* CUDA: the GPU's index in CUDA's runtime; CPU: 0 */
  void* stream;    /* CUDA: the cudaStream_t in which the kernels run; NULL: the default stream. The
                      stream must belong to that GPU. From CUDA 12.8 on the library checks this,
                      except during graph capture. Passing a destroyed stream is undefined
                      behaviour */
  int32_t threads; /* CPU: the maximum number of threads of a call; 0: one for each core */
} treadle_device;

/* A number: `integer` if is_integer is not 0, else `real`. So both kinds are passed without loss of
 * bits. A number outside the range of the dtype to which it is converted wraps around in an integer
 * dtype, and becomes infinite in a floating-point dtype. */
typedef struct treadle_number {
  double real;
  int64_t integer;
  int32_t is_integer;
} treadle_number;

/* ---- elementwise
 *
 * Results are computed in the dtype of `out`, but in float32 if that is float16 or bfloat16 (a half
 * type); they are then rounded once. Inputs of another dtype are converted first: integers may
 * become floats, but floats may not become integers. Inputs are broadcast to the sizes of `out`, as
 * in NumPy. `out` may be one of the inputs (same data, sizes, strides and dtype). Otherwise its
 * memory, from its first to its last byte, must not overlap the memory of an input. Only `out` is
 * written.
 */

/* out = a + alpha * b. `out` has an integer or floating-point dtype; alpha must be an integer if
 * `out` has an integer dtype. */
TREADLE_API int treadle_vector_add(const treadle_device* device, const treadle_array* a,
                                   const treadle_array* b, treadle_number alpha,
                                   const treadle_array* out);

/* out = x * factor. The rules for dtypes are those of treadle_vector_add, with `factor` instead of
 * `alpha`. */
TREADLE_API int treadle_scale(const treadle_device* device, const treadle_array* x,
                              treadle_number factor, const treadle_array* out);

/* out = sin(x) or out = cos(x), where x is in radians. Errors are at most 1.6 ulp in float32 and 2
 * ulp in float64. `out` has a floating-point dtype. */
TREADLE_API int treadle_sine(const treadle_device* device, const treadle_array* x,
                             const treadle_array* out);
TREADLE_API int treadle_cosine(const treadle_device* device, const treadle_array* x,
                               const treadle_array* out);

/* out = grad * cos(x) or out = -grad * sin(x). If `grad` is the gradient of the result of
 * treadle_sine or treadle_cosine, `out` is the gradient of x. */
TREADLE_API int treadle_sine_backward(const treadle_device* device, const treadle_array* grad,
                                      const treadle_array* x, const treadle_array* out);
TREADLE_API int treadle_cosine_backward(const treadle_device* device, const treadle_array* grad,
                                        const treadle_array* x, const treadle_array* out);

/* ---- the pointwise part of an LLTM cell: treadle.reference.lltm_cell without its matrix product
 *
 * B rows, H units:
 *   gates [B, 3H]              the matrix product, columns i, o, z
 *   bias [3H]                  or NULL
 *   old_cell, new_cell [B, H]  in the dtype of gates, or in float32 if gates have a half type
 *   new_h [B, H]               in the dtype of gates
 * Inputs may have any strides; outputs are contiguous. An output may be an input (same data, sizes,
 * strides and dtype); otherwise it must not share memory with any other array.
 */
TREADLE_API int treadle_lltm_cell(const treadle_device* device, const treadle_array* gates,
                                  const treadle_array* bias, const treadle_array* old_cell,
                                  const treadle_array* new_h, const treadle_array* new_cell);

/* grad_h and grad_cell are the gradients of new_h and new_cell; NULL means zeros.
 * The results are grad_gates [B, 3H] and grad_old_cell [B, H] (NULL: not wanted). */
TREADLE_API int treadle_lltm_cell_backward(const treadle_device* device, const treadle_array* gates,
                                           const treadle_array* bias, const treadle_array* new_cell,
                                           const treadle_array* grad_h,
                                           const treadle_array* grad_cell,
                                           const treadle_array* grad_gates,
                                           const treadle_array* grad_old_cell);

/* ---- the pointwise part of a sine layer, output = sin(omega (product + bias))
 *
 * R rows, O columns. All arrays are contiguous, and have output's dtype unless stated otherwise:
 *   product [R, O]  x W^T, in float32 if output has a half type
 *   bias [O]        or NULL
 *   phase [R, O]    written for the backward call, which reads it together with output. Its dtype
 *                   is int16, or float64 if output is float64. NULL: not wanted
 */
TREADLE_API int treadle_sine_linear(const treadle_device* device, const treadle_array* product,
                                    const treadle_array* bias, double omega,
                                    const treadle_array* output, const treadle_array* phase);

/* grad_z = grad * omega * cos(omega (product + bias)), the gradient of product + bias. grad_z may
 * be `grad` itself, just as `output` above may be `product`. */
TREADLE_API int treadle_sine_linear_backward(const treadle_device* device,
                                             const treadle_array* grad, const treadle_array* output,
                                             const treadle_array* phase, double omega,
                                             const treadle_array* grad_z);

/* ---- recurrent layers
 *
 * One call runs all steps and directions. The caller has computed the product input W_ih^T.
 *
 * T steps, B rows, H units, D directions (the second reads the sequence from its end). A cell has G
 * gates per unit. The product of the input (input W_ih^T) is added to the last Gi gates, and the
 * product of h (h W_hh^T) to the first Gh gates:
 *   TREADLE_LLTM  G 3: i o z                    Gi 3, Gh 3
 *   TREADLE_LSTM  G 4: i f g o                  Gi 4, Gh 4
 *   TREADLE_GRU   G 4: n (of h) r z n (of input)  Gi 3, Gh 3
 *   TREADLE_RNN_TANH, TREADLE_RNN_RELU  G 1     Gi 1, Gh 1
 * Weights and biases are torch's: W_ih [Gi H, I], W_hh [Gh H, H], for GRU in the order r z n. All
 * arrays are contiguous, have `dtype` unless stated otherwise, and are aligned to 16 bytes on CUDA.
 * An output must not share memory with any other array of the call.
 *
 * The caller computes the products over all steps, with any BLAS. Before the forward call:
 *   products = input W_ih^T
 * After the backward call, with h_before [D, T, B, H], the h before each step:
 *   grad_input = grad_gates[last Gi] W_ih     grad_W_ih = grad_gates[last Gi]^T input
 *   grad_W_hh = grad_gates[first Gh]^T h_before, for GRU in the order n r z
 *   and the gradients of the biases are sums of grad_gates over T and B
 *
 * CPU: float32 and float64. CUDA: float16, bfloat16 and float32 on GPUs of sm_80 and later, if H is
 * a multiple of 8 and the weights fit on the chip (docs/recurrent.md). For any other layer all
 * these functions, including treadle_recurrent_workspace(), return TREADLE_UNSUPPORTED.
 */

enum {
  TREADLE_LLTM = 0,
  TREADLE_LSTM = 1,
  TREADLE_GRU = 2,
  TREADLE_RNN_TANH = 3,
  TREADLE_RNN_RELU = 4
};

typedef struct treadle_recurrent {
  size_t struct_size;
  int32_t cell;
  int32_t directions; /* 1 or 2 */
  uint32_t dtype;
  uint32_t c_dtype; /* the dtype of c0, c_n and their gradients. It must equal `dtype`. With a half
                       type it may also be float32, and for GRU and RNN it must then be float32 */
  int64_t steps, batch, hidden;
} treadle_recurrent;

/* Writes to *bytes the size of the workspace that a forward call (backward = 0) or a backward call
 * (1) needs. A workspace is aligned to 256 bytes; its contents do not matter between calls. */
TREADLE_API int treadle_recurrent_workspace(const treadle_device* device,
                                            const treadle_recurrent* layer, int backward,
                                            size_t* bytes);

typedef struct treadle_recurrent_inputs {
  size_t struct_size;
  const void* products;  /* [D, T, B, Gi H] */
  const void* weight_hh; /* [D, Gh H, H] */
  const void* bias_ih;   /* [D, Gi H] or NULL */
  const void* bias_hh;   /* [D, Gh H] or NULL; must be NULL for LLTM */
  const void* h0;        /* [D, B, H] */
  const void* c0;        /* [D, B, H] in c_dtype; for GRU and RNN it must be a copy of h0 */
} treadle_recurrent_inputs;

typedef struct treadle_recurrent_outputs {
  size_t struct_size;
  void* output; /* [T, B, D H] */
  void* h_n;    /* [D, B, H] */
  void* c_n;    /* [D, B, H] in c_dtype; for GRU and RNN it is h_n in c_dtype */
  void* gates;  /* [D, T, B, G H], which the backward call reads; NULL: not wanted */
} treadle_recurrent_outputs;

TREADLE_API int treadle_recurrent_forward(const treadle_device* device,
                                          const treadle_recurrent* layer,
                                          const treadle_recurrent_inputs* inputs,
                                          const treadle_recurrent_outputs* outputs, void* workspace,
                                          size_t workspace_bytes);

typedef struct treadle_recurrent_saved {
  size_t struct_size;
  const void* gates;       /* [D, T, B, G H], as forward wrote them */
  const void* weight_hh;   /* [D, Gh H, H] */
  const void* c0;          /* [D, B, H] in c_dtype */
  const void* grad_output; /* [T, B, D H], or NULL, which means zeros */
  const void* grad_h_n;    /* [D, B, H], or NULL: zeros */
  const void* grad_c_n;    /* [D, B, H] in c_dtype, or NULL: zeros */
} treadle_recurrent_saved;

typedef struct treadle_recurrent_grads {
  size_t struct_size;
  void* gates; /* [D, T, B, G H] */
  void* h0;    /* [D, B, H]; for GRU and RNN the caller must add `c0` to get the gradient of h0 */
  void* c0;    /* [D, B, H] in c_dtype */
} treadle_recurrent_grads;

TREADLE_API int treadle_recurrent_backward(const treadle_device* device,
                                           const treadle_recurrent* layer,
                                           const treadle_recurrent_saved* saved,
                                           const treadle_recurrent_grads* grads, void* workspace,
                                           size_t workspace_bytes);

/* ---- launches: what treadle.launch_info shows */

typedef struct treadle_launch {
  size_t struct_size;
  const char* kernel; /* demangled; valid until treadle_clear_launches() */
  uint32_t grid[3];
  uint32_t block[3];
  int32_t vector_width;        /* elements per memory access */
  int32_t elements_per_thread; /* at most */
  int32_t registers;           /* per thread */
  int32_t blocks_per_sm;       /* resident at once, on the current device */
  uint64_t shared_bytes;       /* per block, static and dynamic */
  uint64_t local_bytes;        /* per thread; more than 0 means spills or indexed arrays */
  double occupancy;            /* resident warps / maximum number of warps of a multiprocessor */
  /* For recurrent layers: the planned family of kernels, its algorithm, and the reason for the
   * choice. For other launches they are "". */
  const char* family;
  const char* algorithm;
  const char* reason;
} treadle_launch;

/* If `on` is not 0, the library records this thread's CUDA launches from now on; 0 ends the
 * recording. Kernels run as usual while they are recorded. */
TREADLE_API void treadle_record_launches(int on);
TREADLE_API int64_t treadle_launch_count(void);
TREADLE_API int treadle_get_launch(int64_t index, treadle_launch* launch);
TREADLE_API void treadle_clear_launches(void);

#ifdef __cplusplus
}
#endif

#endif /* TREADLE_KERNELS_H */
