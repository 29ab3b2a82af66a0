#!/bin/sh
# Are the declarations of src/compute/ascend/acl.h and aclnn.h those of CANN? Its headers come with torch-npu, one wheel of 44 MB from the Python
# package index. They are fetched into a temporary folder, compiled against (tests/compute/acl_check.c) and thrown away: nothing of them is kept.
# Without network or pip: skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
CC=${CC:-cc}
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT INT TERM
echo "torch-npu==2.14.0 --hash=sha256:7736f7d82cf9f16c7dfc4537f7e7c638153da760273a193455e70857f912189e" > "$folder/wanted.txt"
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes -r "$folder/wanted.txt" --only-binary=:all: \
  --python-version 3.11 --platform manylinux_2_28_x86_64 -d "$folder" > "$folder/pip.log" 2>&1; then
  echo "acl_check: skipped, the headers cannot be fetched: $(tail -n 1 "$folder/pip.log")"
  echo "0 passed, 0 failed"
  exit 0
fi
python3 - "$folder" << 'END' || exit 2
import glob, re, sys, zipfile
folder = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
common = "torch_npu/include/third_party/op-plugin/op_plugin/utils/op_api_common_base.h"
for name in wheel.namelist():
    if name.startswith("torch_npu/include/acl/"):
        wheel.extract(name, folder)
text = wheel.read(common).decode()
types = re.findall(r"typedef\s+struct\s+acl\w+\s+acl\w+;|typedef\s+[^;]*\(\*_acl(?:Create|Destroy)[^;]*;", text)
with open(folder + "/acl_check_base.h", "w") as f:
    f.write("\n".join(types) + "\n")
library = wheel.read("torch_npu/lib/libtorch_npu.so")
with open(folder + "/operators", "w") as f:
    f.write("\n".join(sorted(set(n.decode() for n in re.findall(rb"aclnn[A-Za-z0-9]+", library)))) + "\n")
END

passed=0 failed=0
result() { # NAME STATUS
  if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "acl_check: $1"; fi
}
compile() { # FLAGS...: status of the compiler
  "$CC" -std=c11 -Wall -Wextra -Werror -Wno-deprecated-declarations -isystem "$folder/torch_npu/include" -I "$folder" -I src -fsyntax-only \
    "$@" tests/compute/acl_check.c > "$folder/log" 2>&1
}
compile
status=$?
[ $status -eq 0 ] || head -n 40 "$folder/log"
result "a declaration in src/compute/ascend/acl.h is not CANN's" $status
for wrong in 1 2 3 4 5; do
  ! compile -DCYGNET_ACL_CHECK_WRONG=$wrong
  result "mistake $wrong was not found" $?
done
grep -rqE "ACL_ERROR_REPEAT_INITIALIZE *= *100002;" "$folder/torch_npu/include/acl"
result "ACL_ERROR_REPEAT_INITIALIZE is not 100002" $?

# every operator's name is one that torch-npu looks up, too
printf '#include "compute/ascend/acl.h"\n#include <stdio.h>\nint main(void) {\n#define X(op, ...) puts("aclnn" #op);\n  ACLNN_OPERATORS(X)\n}\n' > "$folder/names.c"
"$CC" -std=c11 -I src "$folder/names.c" -o "$folder/names" && "$folder/names" | sort > "$folder/ours"
unknown=$(comm -23 "$folder/ours" "$folder/operators" | tr '\n' ' ')
[ -s "$folder/ours" ] && [ -z "$unknown" ]
result "operators that torch-npu does not know: $unknown" $?
n=$(wc -l < "$folder/ours")
[ $failed -eq 0 ] && echo "acl_check: functions, numbers and sizes are those of torch-npu 2.14.0; $n operators by name"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
