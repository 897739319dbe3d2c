// Defines every op of schemas.h, and the kernels that all of them have in common.
#include <torch/library.h>

#include "common/rules.h"
#include "schemas.h"

namespace treadle {

TORCH_LIBRARY(treadle, m) {
  for (const char* schema : kSchemas) m.def(schema, {at::Tag::pt2_compliant_tag});
  for (const char* schema : kCompositeSchemas) m.def(schema, {at::Tag::pt2_compliant_tag});
}

// A device that no kernel was written for (MPS, XPU, sparse layouts, ...) gets a sentence.
TORCH_LIBRARY_IMPL(treadle, CompositeExplicitAutograd, m) {
  for (const char* schema : kSchemas) {
    m.impl(schema_name(schema).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&no_backend_rule>());
  }
}

TORCH_LIBRARY_IMPL(treadle, ADInplaceOrView, m) {
  for (const char* schema : kSchemas) {
    if (std::string(schema).find("!)") == std::string::npos) continue;
    m.impl(schema_name(schema).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&version_counter_rule>());
  }
}

}  // namespace treadle
