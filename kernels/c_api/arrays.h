// Checks the arrays of kernels.h, and makes the iteration spaces of elementwise kernels from them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/c_api/status.h"
#include "kernels/common/dtype.h"
#include "kernels/elementwise/args.h"
#include "treadle/kernels.h"

namespace treadle {

struct NamedArray {
  const char* name;
  const treadle_array* array;
};

void check_device(const treadle_device* device);

// Raises for a dtype without kernels. Error texts begin with `name` and `field`.
Dtype dtype_of(const char* name, uint32_t dtype, const char* field = ".dtype");
uint32_t number_of(Dtype dtype);  // the inverse

// "[2, 3]"
std::string listed(const int64_t* numbers, int64_t count);

int64_t count_of(const treadle_array& array);                 // the number of elements
std::vector<int64_t> strides_of(const treadle_array& array);  // in elements; contiguous for NULL

// Checks the struct, sizes, dtype and data of an array that a call on `device` reads.
void check_array(const treadle_device& device, const NamedArray& given);

// Checks the memory of an array whose sizes and strides have been checked. Error texts begin with
// `name` and `field`.
void check_data(const treadle_device& device, const char* name, const char* field,
                const treadle_array& array, int64_t alignment);

// Checks an `out` that is computed elementwise from `inputs` of the same sizes. Each input must
// either be `out` itself or share no memory with it, and no two elements of `out` may have the same
// address.
void check_memory(const NamedArray& out, std::initializer_list<NamedArray> inputs);

// Checks that two arrays, which are both written, share no memory.
void check_apart(const NamedArray& one, const NamedArray& other);

// The iteration space of an elementwise op; operand 0 is the output. Inputs are broadcast, and
// dimensions are merged wherever all operands allow it.
struct ElementwiseSpace {
  ElementwiseArgs args{};

  // Raises if an input does not broadcast to `out`.
  ElementwiseSpace(const NamedArray& out, std::initializer_list<NamedArray> inputs);

 private:
  void sort_and_merge();
};

// Calls f(part) for parts whose offsets fit in 32 bits.
template <class F>
void in_32_bits(const ElementwiseArgs& args, const F& f) {
  int64_t last[kMaxOperands] = {};
  int64_t largest = 0;
  int at = 0;
  bool fits = args.numel < int64_t{1} << 31;
  for (int d = 0; d < args.ndim; ++d) {
    if (args.sizes[d] > largest) largest = args.sizes[at = d];
    for (int i = 0; i < args.operands; ++i) {
      const int64_t stride = args.strides[i][d];
      last[i] += (args.sizes[d] - 1) * (stride < 0 ? -stride : stride);
    }
  }
  for (int i = 0; i < args.operands; ++i) fits = fits && last[i] < (int64_t{1} << 31) - 16;
  if (fits || args.dense) return f(args);
  ElementwiseArgs part = args;
  part.sizes[at] = largest / 2;
  part.numel = args.numel / largest * part.sizes[at];
  in_32_bits(part, f);
  for (int i = 0; i < args.operands; ++i) part.data[i] += part.sizes[at] * args.strides[i][at];
  part.sizes[at] = largest - part.sizes[at];
  part.numel = args.numel - part.numel;
  in_32_bits(part, f);
}

}  // namespace treadle
