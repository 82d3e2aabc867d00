atoll_is_file() { [ -f "$1" ] && [ -x "$1" ]; }

# Only programs count, and no words that the shell knows.
atoll_has() {
  case $1 in */*) atoll_is_file "$1"; return ;; esac
  atoll_found=1 IFS=:
  set -f
  for atoll_at in $2; do
    if atoll_is_file "${atoll_at:-.}/$1"; then atoll_found=0; break; fi
  done
  unset IFS
  set +f
  return $atoll_found
}
