#include "kernels/c_api/arrays.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>

#include "kernels/c_api/cuda.h"
#include "kernels/c_api/host_memory.h"

namespace treadle {
namespace {

struct DtypeNumber {
  uint32_t number;
  Dtype dtype;
};

constexpr DtypeNumber kNumbers[] = {
    {TREADLE_BOOL, Dtype::kBool},     {TREADLE_UINT8, Dtype::kUInt8},
    {TREADLE_INT8, Dtype::kInt8},     {TREADLE_INT16, Dtype::kInt16},
    {TREADLE_INT32, Dtype::kInt32},   {TREADLE_INT64, Dtype::kInt64},
    {TREADLE_FLOAT16, Dtype::kHalf},  {TREADLE_BFLOAT16, Dtype::kBFloat16},
    {TREADLE_FLOAT32, Dtype::kFloat}, {TREADLE_FLOAT64, Dtype::kDouble},
};

// The range of an array's bytes; empty if it has no elements.
struct Extent {
  const char *begin, *end;
  bool empty() const { return begin == end; }
  bool overlaps(const Extent& other) const {
    return !empty() && !other.empty() && begin < other.end && other.begin < end;
  }
};

Extent extent_of(const treadle_array& array) {
  const int64_t size = size_of(dtype_of("", array.dtype));
  const char* begin = static_cast<const char*>(array.data);
  if (count_of(array) == 0) return {begin, begin};
  const char* last = begin;
  const std::vector<int64_t> strides = strides_of(array);
  for (int d = 0; d < array.ndim; ++d) {
    const int64_t reach = (array.sizes[d] - 1) * strides[d] * size;
    (reach < 0 ? begin : last) += reach;
  }
  return {begin, last + size};
}

void check_sizes(const char* name, const treadle_array& array, int64_t element) {
  int64_t count = 1, reach = 0;
  bool empty = false;
  for (int d = 0; d < array.ndim; ++d) empty = empty || array.sizes[d] == 0;
  for (int d = 0; d < array.ndim; ++d) {
    const int64_t size = array.sizes[d];
    require(size >= 0, name, ".sizes must not be negative, got ", size, " in dimension ", d);
    if (empty) continue;
    int64_t along = 0;
    const int64_t stride = array.strides == nullptr ? 1 : array.strides[d];
    const bool fits = !__builtin_mul_overflow(count, size, &count) &&
                      !__builtin_mul_overflow(size - 1, stride, &along) &&
                      !__builtin_mul_overflow(along, element, &along) &&
                      along != std::numeric_limits<int64_t>::min() &&
                      !__builtin_add_overflow(reach, along < 0 ? -along : along, &reach) &&
                      count <= std::numeric_limits<int64_t>::max() / element;
    require(fits, name, " must span fewer than 2^63 bytes, got sizes ",
            listed(array.sizes, array.ndim),
            array.strides == nullptr ? "" : " and strides " + listed(array.strides, array.ndim));
  }
}

// Whether two elements may have the same address. They cannot if each stride exceeds the reach of
// all dimensions with smaller strides.
bool may_repeat(const treadle_array& array) {
  if (count_of(array) == 0) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  const std::vector<int64_t> strides = strides_of(array);
  for (int d = 0; d < array.ndim; ++d) {
    if (array.sizes[d] > 1) dims.emplace_back(std::abs(strides[d]), array.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

// Whether the array reaches beyond either end of the address space.
bool wraps(const treadle_array& array, int64_t element) {
  uintptr_t first = reinterpret_cast<uintptr_t>(array.data), last = first;
  const std::vector<int64_t> strides = strides_of(array);
  bool found = __builtin_add_overflow(last, static_cast<uintptr_t>(element), &last);
  for (int d = 0; d < array.ndim; ++d) {
    const int64_t reach = (array.sizes[d] - 1) * strides[d] * element;
    found =
        found || (reach < 0 ? __builtin_sub_overflow(first, static_cast<uintptr_t>(-reach), &first)
                            : __builtin_add_overflow(last, static_cast<uintptr_t>(reach), &last));
  }
  return found;
}

bool same_place(const treadle_array& a, const treadle_array& b) {
  return a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim &&
         std::equal(a.sizes, a.sizes + a.ndim, b.sizes) && strides_of(a) == strides_of(b);
}

}  // namespace

void check_device(const treadle_device* device) {
  require_struct("device", device);
  require(device->type == TREADLE_CPU || device->type == TREADLE_CUDA,
          "device.type must be TREADLE_CPU (1) or TREADLE_CUDA (2), got ", device->type);
  require(device->threads >= 0, "device.threads must not be negative, got ", device->threads);
  if (device->type == TREADLE_CPU) {
    require(device->index == 0, "device.index must be 0 on the CPU, got ", device->index);
  } else {
    cuda::check_index(device->index);
  }
}

Dtype dtype_of(const char* name, uint32_t dtype, const char* field) {
  for (const auto& [number, found] : kNumbers) {
    if (number == dtype) return found;
  }
  std::ostringstream hex;
  hex << std::hex << dtype;
  raise(TREADLE_INVALID, name, field, " must be a dtype of kernels.h, got 0x", hex.str());
}

uint32_t number_of(Dtype dtype) {
  const auto is_it = [dtype](const DtypeNumber& pair) { return pair.dtype == dtype; };
  return std::find_if(std::begin(kNumbers), std::end(kNumbers), is_it)->number;
}

std::string listed(const int64_t* numbers, int64_t count) {
  std::ostringstream text;
  for (int64_t i = 0; i < count; ++i) text << (i > 0 ? ", " : "[") << numbers[i];
  return count > 0 ? text.str() + "]" : "[]";
}

int64_t count_of(const treadle_array& array) {
  // A size of 0 is checked first, because the product of the other sizes may exceed 64 bits.
  if (std::count(array.sizes, array.sizes + array.ndim, 0) > 0) return 0;
  return std::accumulate(array.sizes, array.sizes + array.ndim, int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> strides_of(const treadle_array& array) {
  if (array.strides != nullptr) return {array.strides, array.strides + array.ndim};
  std::vector<int64_t> strides(static_cast<size_t>(array.ndim), 1);
  if (count_of(array) == 0) return strides;
  for (int d = array.ndim - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * array.sizes[d + 1];
  }
  return strides;
}

void check_array(const treadle_device& device, const NamedArray& given) {
  const auto& [name, array] = given;
  require_struct(name, array);
  require(array->ndim >= 0 && array->ndim <= TREADLE_MAX_DIMS, name,
          ".ndim must be at least 0 and at most ", TREADLE_MAX_DIMS, ", got ", array->ndim);
  require(array->ndim == 0 || array->sizes != nullptr, name, ".sizes must point to ", array->ndim,
          " sizes, got NULL");
  const int64_t element = size_of(dtype_of(name, array->dtype));
  check_sizes(name, *array, element);
  check_data(device, name, ".data", *array, element);
}

void check_data(const treadle_device& device, const char* name, const char* field,
                const treadle_array& array, int64_t alignment) {
  if (count_of(array) == 0) return;
  require(array.data != nullptr, name, field, " must point to the first element, got NULL");
  require(reinterpret_cast<uintptr_t>(array.data) % alignment == 0, name, field,
          " must be aligned to ", alignment, " bytes, got ", array.data);
  require(!wraps(array, size_of(dtype_of(name, array.dtype))), name, field,
          " must have all elements in the address space, got ", array.data, " with sizes ",
          listed(array.sizes, array.ndim));
  const Extent extent = extent_of(array);
  if (device.type == TREADLE_CUDA) {
    cuda::check_pointer(name, field, extent.begin, device.index);
    cuda::check_pointer(name, field, extent.end - 1, device.index);
  } else {
    require(readable(extent.begin) && readable(extent.end - 1), name, field,
            " must be memory of the CPU, from the first element to the last, got ", array.data);
  }
}

void check_memory(const NamedArray& out, std::initializer_list<NamedArray> inputs) {
  require(!may_repeat(*out.array), out.name,
          " must not have two elements at one address, got sizes ",
          listed(out.array->sizes, out.array->ndim), " and strides ",
          listed(strides_of(*out.array).data(), out.array->ndim));
  const Extent written = extent_of(*out.array);
  for (const auto& [name, array] : inputs) {
    require(!written.overlaps(extent_of(*array)) || same_place(*out.array, *array), out.name,
            " must be ", name, " or share no memory with it, got one that partly overlaps it");
  }
}

void check_apart(const NamedArray& one, const NamedArray& other) {
  require(!extent_of(*one.array).overlaps(extent_of(*other.array)), one.name,
          " must share no memory with ", other.name, ", got one that overlaps");
}

ElementwiseSpace::ElementwiseSpace(const NamedArray& out,
                                   std::initializer_list<NamedArray> inputs) {
  const treadle_array& to = *out.array;
  args.operands = 1 + static_cast<int>(inputs.size());
  args.ndim = to.ndim;
  args.numel = count_of(to);
  args.compute = dtype_of(out.name, to.dtype);
  int i = 0;
  const auto take = [&](const NamedArray& given) {
    const treadle_array& from = *given.array;
    args.dtypes[i] = dtype_of(given.name, from.dtype);
    args.data[i] = static_cast<char*>(from.data);
    const std::vector<int64_t> strides = strides_of(from);
    const int missing = to.ndim - from.ndim;
    require(missing >= 0, given.name, " must broadcast to ", out.name, ", which has ", to.ndim,
            " dimensions, got ", from.ndim);
    for (int d = 0; d < from.ndim; ++d) {
      const int64_t size = from.sizes[d], wanted = to.sizes[d + missing];
      require(size == wanted || size == 1, given.name, " must broadcast to ", out.name,
              ", which has size ", wanted, " in dimension ", d + missing, ", got ", size);
      // Kernels expect the fastest dimension first.
      const bool still = size == 1 || args.numel == 0;
      args.strides[i][from.ndim - 1 - d] = still ? 0 : strides[d] * size_of(args.dtypes[i]);
    }
    ++i;
  };
  for (int d = 0; d < to.ndim; ++d) args.sizes[to.ndim - 1 - d] = to.sizes[d];
  take(out);
  for (const NamedArray& input : inputs) take(input);
  if (args.numel > 0) sort_and_merge();
}

void ElementwiseSpace::sort_and_merge() {
  struct Dim {
    int64_t size, strides[kMaxOperands];
  };
  std::vector<Dim> dims;
  for (int d = 0; d < args.ndim; ++d) {
    if (args.sizes[d] == 1) continue;
    Dim dim{args.sizes[d], {}};
    for (int i = 0; i < args.operands; ++i) dim.strides[i] = args.strides[i][d];
    if (dim.strides[0] < 0) {  // reverse the dimension
      for (int i = 0; i < args.operands; ++i) {
        args.data[i] += (dim.size - 1) * dim.strides[i];
        dim.strides[i] = -dim.strides[i];
      }
    }
    dims.push_back(dim);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dim& a, const Dim& b) { return a.strides[0] < b.strides[0]; });
  std::vector<Dim> merged;
  for (const Dim& dim : dims) {
    const auto continues = [&](int i) {
      return dim.strides[i] == merged.back().strides[i] * merged.back().size;
    };
    bool all = !merged.empty();
    for (int i = 0; all && i < args.operands; ++i) all = continues(i);
    if (all) {
      merged.back().size *= dim.size;
    } else {
      merged.push_back(dim);
    }
  }
  if (merged.empty()) merged.push_back({1, {}});
  args.ndim = static_cast<int>(merged.size());
  args.dense = args.ndim == 1;
  for (int d = 0; d < args.ndim; ++d) {
    args.sizes[d] = merged[d].size;
    for (int i = 0; i < args.operands; ++i) args.strides[i][d] = merged[d].strides[i];
  }
  for (int i = 0; i < args.operands; ++i) {
    const int64_t size = size_of(args.dtypes[i]);
    args.dense = args.dense && args.dtypes[i] == args.compute &&
                 (args.strides[i][0] == size || args.numel == 1);
    // A single element is dense, whatever its stride.
    if (args.numel == 1) args.strides[i][0] = size;
  }
}

}  // namespace treadle
