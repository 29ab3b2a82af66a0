#!/bin/sh
# thin.sh — makes the thin libraries of one profile: each exports the names that this CANN has and jumps to the core's.
#
#   thin.sh FOLDER PROFILE NUMBER CANN CORE CC [CFLAGS...]
#
# FOLDER/PROFILE/lib64/lib*.so; CORE lies in FOLDER and is found from there. CANN before 8.5 has one libopapi.so, 8.5 has both kinds, later ones
# only the split ones.
set -e
folder=$1 profile=$2 number=$3 cann=$4 core=$5
shift 5
symbols=$(dirname "$0")/symbols.txt
compiler=$*
out=$folder/$profile/lib64
mkdir -p "$out"

thin() { # NAME OPERATORS LIBRARIES...: OPERATORS is what emu_select is told
  name=$1 operators=$2
  shift 2
  libraries=$*
  {
    printf '%s\n' "extern void emu_select(int profile, int library);" \
      "__attribute__((constructor)) static void select_profile(void) { emu_select($number, $operators); }" \
      "#if defined(__x86_64__)" \
      "#define JUMP(name) __asm__(\".text\\n.globl \" #name \"\\n.type \" #name \",@function\\n\" #name \":\\n jmp *emu_\" #name \"@GOTPCREL(%rip)\\n.size \" #name \",.-\" #name);" \
      "#elif defined(__aarch64__)" \
      "#define JUMP(name) __asm__(\".text\\n.globl \" #name \"\\n.type \" #name \",@function\\n\" #name \":\\n adrp x16, :got:emu_\" #name \"\\n ldr x16, [x16, :got_lo12:emu_\" #name \"]\\n br x16\\n.size \" #name \",.-\" #name);" \
      "#endif"
    awk -v libraries=" $libraries " -v cann="$cann" '
      NR == FNR { core[$1]; next }
      function jump(name) { if ("emu_" name in core) print "JUMP(" name ")"; else print "#error symbols.txt names " name ", which the core lacks" }
      /^#/ || NF < 3 || index(libraries, " " $1 " ") == 0 || $2 > cann { next }
      $3 == "op" { jump("aclnn" $4 "GetWorkspaceSize"); jump("aclnn" $4); next }
      { jump($3) }' "$out/../core.txt" "$symbols"
  } > "$out/$name.c"
  $compiler -shared -fPIC -Wl,-soname,"$name.so" "$out/$name.c" "$core" -Wl,-rpath,'$ORIGIN/../..' -o "$out/$name.so"
  rm "$out/$name.c"
}
nm -D --defined-only "$core" | awk '{ print $3 }' > "$out/../core.txt"
thin libascendcl 0 ascendcl
thin libnnopbase 0 nnopbase
[ "$cann" -ge 900 ] || thin libopapi 1 math nn transformer
if [ "$cann" -ge 805 ]; then
  for library in math nn transformer; do thin libopapi_$library 2 $library; done
fi
