// Rows on standard output, as TSV for people and pipes or as JSON lines for machines.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "client/lookup_client.h"
#include "core/key/key_kind.h"

namespace latchkey {

// "found", "absent", or why it is not known.
std::string_view StatusWord(const ClientRow& row);

// A value in JSON: under "value" if it is valid UTF-8, else in hexadecimal digits under
// "value_hex".
void PutValue(std::string_view value, nlohmann::ordered_json* json);

// Writes a line; false when standard output can't be written.
bool PutLine(const std::string& line);

}  // namespace latchkey
