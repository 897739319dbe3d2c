// Error texts of the functions of libtreadle_kernels.so, which must not throw.
#pragma once

#include <sstream>
#include <string>

namespace treadle {

// The last error of this thread; "" if there was none.
const char* error_text();
// Keeps the text, and gives it back as error_text() does.
const char* keep_error(std::string text);

// The text of all parts.
template <class... Parts>
const char* fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return keep_error(text.str());
}

}  // namespace treadle
