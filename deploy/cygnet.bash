# cygnet.bash — completion for bash. It asks the program that is being called for its help pages, so it knows the options of that version.

# Options of a help page (on stdin), one a line: names, separated by commas; VALUE or nothing; choices, separated by blanks. Columns are separated by |.
_cygnet_options() {
  awk '
    function flush(    c) {
      if (names == "") return
      c = text
      if (!sub(/.*one of /, "", c)) c = ""
      sub(/[;)].*/, "", c)
      gsub(/, */, " ", c)
      print names "|" value "|" c
      names = value = text = ""
    }
    match($0, /^(  -[a-zA-Z], |      )--[a-z0-9-]+(, --[a-z0-9-]+)*( [^ ]+)?/) {
      flush()
      n = split(substr($0, 1, RLENGTH), word, /[ ,]+/)
      for (i = 1; i <= n; i++)
        if (word[i] ~ /^-/) names = names (names == "" ? "" : ",") word[i]
        else if (word[i] != "") value = word[i]
      text = substr($0, RLENGTH + 1)
      next
    }
    { text = text " " $0 }
    /^$/ { flush() }
    END { flush() }' | sed 's/  */ /g'
}

_cygnet() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]} options
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ] || [ "${COMP_WORDS[1]}" = help ]; then
    COMPREPLY=($(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  .*/\1/p') --help --version" -- "$current"))
    return
  fi
  # bash takes --name=value for three words
  if [ "$current" = "=" ]; then current=''; elif [ "$before" = "=" ]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi
  options=$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null | _cygnet_options)
  local names value choices
  while IFS='|' read -r names value choices; do
    case ",$names," in
    *",$before,"*)
      [ -n "$value" ] || break
      if [ -n "$choices" ]; then COMPREPLY=($(compgen -W "$choices" -- "$current")); else compopt -o default 2>/dev/null; fi
      return
      ;;
    esac
  done <<<"$options"
  case $current in
  -*) COMPREPLY=($(compgen -W "$(printf '%s\n' "$options" | cut -d'|' -f1 | tr ',' ' ')" -- "$current")) ;;
  *) compopt -o default 2>/dev/null ;;
  esac
}
complete -F _cygnet cygnet
