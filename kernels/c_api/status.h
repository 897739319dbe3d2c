// Errors in the functions of kernels.h. Inside the library they are exceptions; the caller gets a
// status and a text.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "kernels/common/error.h"
#include "treadle/kernels.h"

namespace treadle {

struct Failure : std::exception {
  Failure(int status, std::string text) : status(status), text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  int status;
  std::string text;
};

template <class... Parts>
[[noreturn]] void raise(int status, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Failure(status, text.str());
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) raise(TREADLE_INVALID, parts...);
}

// Checks that the caller's struct exists and is as large as this library's. A larger one comes from
// a newer header with fields that this library does not know.
template <class T>
void require_struct(const char* name, const T* given) {
  require(given != nullptr, name, " must point to a struct, got NULL");
  require(given->struct_size == sizeof(T), name, ".struct_size must be ", sizeof(T),
          ", which is sizeof(*", name, ") in the kernels.h of this library, got ",
          given->struct_size);
}

// Calls f() and returns the status. No exception leaves the library.
template <class F>
int guarded(const F& f) noexcept {
  try {
    f();
    return TREADLE_OK;
  } catch (const Failure& failure) {
    keep_error(failure.text);
    return failure.status;
  } catch (const std::bad_alloc&) {
    keep_error("the call must find enough memory, got std::bad_alloc");
    return TREADLE_NO_MEMORY;
  } catch (const std::exception& error) {
    keep_error(std::string("the call failed: ") + error.what());
    return TREADLE_UNSUPPORTED;
  }
}

}  // namespace treadle
