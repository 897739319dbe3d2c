// Replaces csrc/*/cuda in a CPU-only build: the CUDA kernel of every op raises an error that says
// how to rebuild. The build system defines the reason and the remedy.
#include <torch/library.h>

#include "common/rules.h"
#include "schemas.h"

namespace treadle {

namespace {

void cuda_missing_rule(const OperatorHandle& op, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, public_name(op),
                              ": tensors must be on the CPU, got a CUDA tensor: this treadle was "
                              "built without CUDA, because " TREADLE_CUDA_REASON
                              ". To change this, " TREADLE_CUDA_REMEDY);
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  for (const char* schema : kSchemas) {
    m.impl(schema_name(schema).c_str(), TREADLE_RULE(cuda_missing_rule));
  }
}

}  // namespace
}  // namespace treadle
