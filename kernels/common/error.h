// Error texts of the functions of libtreadle_kernels.so, which must not throw.
#pragma once

#include <sstream>
#include <string>

namespace treadle {

// The last error of this thread; "" if there was none.
const char* error_text();
// Stores the text as this thread's last error, and returns it.
const char* keep_error(std::string text);

// Stores the concatenated parts as the last error, and returns them.
template <class... Parts>
const char* fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return keep_error(text.str());
}

}  // namespace treadle
