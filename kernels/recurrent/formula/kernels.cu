// Finds the CUDA kernels of a formula's cell. A function that Python has registered compiles them.
// Each kernel is loaded once per process and GPU architecture.
#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>

#include "kernels/common/launch.cuh"
#include "kernels/recurrent/formula/cells.h"
#include "kernels/recurrent/formula/function.h"

namespace treadle {
namespace {

thread_local CellKind current = CellKind::kFormula;

std::string name_of(const std::type_info& type) {
  int status = 0;
  char* const text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : type.name();
  std::free(text);
  return name;
}

void check(cudaError_t error, const std::string& what) {
  if (error != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(error));
}

const void* load(const char* cell, const char* kernel, const std::string& expression,
                 int architecture) {
  struct Loaded {
    cudaError_t error = cudaSuccess;
    cudaKernel_t kernel = nullptr;
    std::string reason = "its compilation was interrupted";
  } loaded;
  const FormulaCompiler compile = formula_compiler();
  if (compile == nullptr) {
    throw std::runtime_error(std::string(cell) +
                             ": only treadle's Python package can compile cells");
  }
  // In relaxed mode, kernels can be loaded even while this thread or another one captures a graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), cell);
  compile(
      cell, kernel, expression.c_str(), architecture, &loaded,
      [](void* context, const void* image, size_t, const char* symbol) {
        auto* const to = static_cast<Loaded*>(context);
        cudaLibrary_t library = nullptr;
        to->error = cudaLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
        if (to->error == cudaSuccess) {
          to->error = cudaLibraryGetKernel(&to->kernel, library, symbol);
        }
      },
      [](void* context, const char* reason) { static_cast<Loaded*>(context)->reason = reason; });
  check(cudaThreadExchangeStreamCaptureMode(&mode), cell);
  check(loaded.error, std::string(cell) + ": the compiled kernel cannot be loaded");
  if (loaded.kernel == nullptr) throw std::runtime_error(std::string(cell) + ": " + loaded.reason);
  return reinterpret_cast<const void*>(loaded.kernel);
}

}  // namespace

FormulaScope::FormulaScope(CellKind cell) : before_(current) { current = cell; }
FormulaScope::~FormulaScope() { current = before_; }

const void* formula_kernel(const char* kernel, std::initializer_list<const std::type_info*> types,
                           std::initializer_list<TemplateValue> values) {
  using Key = std::tuple<CellKind, int, std::string>;
  static std::map<Key, const void*> known;
  static std::mutex mutex;
  std::string expression = std::string("treadle::") + kernel + '<';
  const char* separator = "";
  for (const std::type_info* type : types)
    expression += separator + name_of(*type), separator = ", ";
  for (const TemplateValue& value : values) {
    expression += separator;
    expression += !value.is_bool     ? std::to_string(value.value)
                  : value.value != 0 ? "true"
                                     : "false";
    separator = ", ";
  }
  expression += '>';
  const Key key{current, current_gpu() / 10, expression};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  // Do not hold the mutex during load(): it may acquire Python's GIL, and the thread that holds the
  // GIL may be waiting for this mutex.
  const void* const made = load(cell_info(current).name, kernel, expression, std::get<int>(key));
  const std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(key, made).first->second;
}

}  // namespace treadle
