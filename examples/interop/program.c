/* Calls the kernels from C99, without Python or torch. In a clone that has been built:
 *
 *   lib=$PWD/python_pkg/treadle/lib
 *   gcc -std=c99 -Ikernels/include examples/interop/program.c $lib/libtreadle_kernels.so \
 *       -Wl,-rpath,$lib -lm -o build/program && build/program
 *
 * An installed package has the headers in treadle/include and the library in treadle/lib.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "treadle/kernels.h"

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, treadle_error_text());
  return 1;
}

int main(void) {
  if (treadle_kernels_version() < TREADLE_KERNELS_VERSION) return failed("the library is too old");

  float x[6] = {0, 1, 2, 3, 4, 5}, y[6];
  const int64_t sizes[2] = {2, 3};
  const treadle_device cpu = {.struct_size = sizeof(cpu), .type = TREADLE_CPU};
  treadle_array in = {.struct_size = sizeof(in), .data = x, .sizes = sizes};
  in.ndim = 2;
  in.dtype = TREADLE_FLOAT32;
  treadle_array out = in;
  out.data = y;
  const treadle_number half = {.real = 0.5};

  /* y = sin(x / 2): the second call works in place. */
  if (treadle_scale(&cpu, &in, half, &out) != TREADLE_OK) return failed("scale");
  if (treadle_sine(&cpu, &out, &out) != TREADLE_OK) return failed("sine");
  for (int i = 0; i < 6; ++i) {
    if (fabs(y[i] - sin(0.5 * x[i])) > 1e-6) return failed("a wrong sine");
  }

  /* With a wrong argument, the call returns an error, sets the error text and writes nothing. */
  out.dtype = TREADLE_INT32;
  if (treadle_sine(&cpu, &in, &out) != TREADLE_INVALID) return failed("sine of integers");
  if (strstr(treadle_error_text(), "out.dtype must be") == NULL) return failed("another error");
  printf("C: sine and scale of an array in place; an error reads \"%s\"\n", treadle_error_text());
  return 0;
}
