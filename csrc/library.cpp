// Defines every op of schemas.h, and registers the kernels that the ops share.
#include <torch/library.h>

#include "common/rules.h"
#include "schemas.h"

namespace treadle {

TORCH_LIBRARY(treadle, m) {
  for (const char* schema : kSchemas) m.def(schema, {at::Tag::pt2_compliant_tag});
  for (const char* schema : kCompositeSchemas) m.def(schema, {at::Tag::pt2_compliant_tag});
}

// Calls with a device or layout that has no kernels (MPS, XPU, sparse, ...) raise a clear error.
TORCH_LIBRARY_IMPL(treadle, CompositeExplicitAutograd, m) {
  for (const char* schema : kSchemas) {
    m.impl(schema_name(schema).c_str(), TREADLE_RULE(no_backend_rule));
  }
}

// Registers `rule` for every op that writes into an argument.
template <auto rule>
static void of_writing_ops(torch::Library& m) {
  for (const char* schema : kSchemas) {
    if (std::string(schema).find("!)") == std::string::npos) continue;
    m.impl(schema_name(schema).c_str(), torch::CppFunction::makeFromBoxedFunction<rule>());
  }
}

TORCH_LIBRARY_IMPL(treadle, ADInplaceOrView, m) { of_writing_ops<&version_counter_rule>(m); }
TORCH_LIBRARY_IMPL(treadle, Negative, m) { of_writing_ops<&lazy_bits_rule>(m); }
TORCH_LIBRARY_IMPL(treadle, Conjugate, m) { of_writing_ops<&lazy_bits_rule>(m); }

}  // namespace treadle
