#include "kernels/common/error.h"

#include <utility>

namespace treadle {

static thread_local std::string last_error;

const char* error_text() { return last_error.c_str(); }

const char* keep_error(std::string text) {
  last_error = std::move(text);
  return last_error.c_str();
}

}  // namespace treadle
