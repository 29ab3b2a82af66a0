#!/bin/sh
# deb.sh — Debian packages from what `make install` installs: cygnet, libcygnet0, libcygnet-dev.
#
#   packaging/deb.sh BUILD OUT      BUILD: where make has built; OUT: where the packages go. `make deb` calls it
#
# Needs dpkg-dev and binutils, not root. The same source gives the same bytes: times are the changelog's (or SOURCE_DATE_EPOCH), owners are root, files are
# sorted, compression has one thread.
set -eu
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C

stop() {
  echo "deb.sh: $*" >&2
  exit 1
}
[ $# -eq 2 ] || stop "usage: packaging/deb.sh BUILD OUT"
for program in dpkg-deb dpkg-shlibdeps dpkg-gencontrol dpkg-parsechangelog dpkg-architecture strip gzip; do
  command -v "$program" >/dev/null || stop "$program is missing: apt-get install dpkg-dev binutils gzip"
done
build=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)

version=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
header=$(sed -n 's/^#define CYGNET_VERSION "\(.*\)"$/\1/p' include/cygnet.h)
[ "$version" = "$header" ] || stop "packaging/debian/changelog begins with version $version, include/cygnet.h has CYGNET_VERSION $header: add an entry"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(dpkg-parsechangelog -l packaging/debian/changelog -S Timestamp)}
export SOURCE_DATE_EPOCH
arch=$(dpkg-architecture -qDEB_HOST_ARCH)
libdir=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)

# everything as installed, then each package's part of it
work=$build/deb-work
rm -rf "$work"
mkdir -p "$work/all"
work=$(cd "$work" && pwd)
cp -R packaging/debian "$work/debian"
"${MAKE:-make}" -s BUILD="$build" install DESTDIR="$work/all" PREFIX=/usr LIBDIR="$libdir"

move() { # PACKAGE PATH...   from the installed tree into the package's
  package=$1
  shift
  for path in "$@"; do
    mkdir -p "$work/debian/$package$(dirname "$path")"
    mv "$work/all$path" "$work/debian/$package$path"
  done
}
examples=/usr/share/doc/cygnet/examples
move libcygnet0 "$libdir/libcygnet.so.$version" "$libdir/libcygnet.so.${version%%.*}"
move libcygnet-dev "$libdir/libcygnet.so" "$libdir/libcygnet.a" "$libdir/pkgconfig" /usr/include
mkdir -p "$work/debian/libcygnet-dev/usr/share/doc/libcygnet-dev/examples"
mv "$work/all$examples"/complete.* "$work/debian/libcygnet-dev/usr/share/doc/libcygnet-dev/examples"
install -D -m644 deploy/serve.json "$work/debian/cygnet/etc/cygnet/serve.json"
rm "$work/all/usr/share/doc/cygnet/LICENSE" "$work/all$examples/serve.json" # copyright names the one, /etc/cygnet has the other
rmdir "$work/all$libdir"
cp -R "$work/all/." "$work/debian/cygnet"

cd "$work"
strip --remove-section=.comment --remove-section=.note debian/cygnet/usr/bin/cygnet
strip --remove-section=.comment --remove-section=.note --strip-unneeded "debian/libcygnet0$libdir/libcygnet.so.$version"
strip --strip-debug --enable-deterministic-archives --remove-section=.comment "debian/libcygnet-dev$libdir/libcygnet.a"
find debian/cygnet/usr/share/man -name '*.1' -exec gzip -9n {} + 2>/dev/null || true

# Structs of cygnet.h may change with the second number of the version: who was built with 0.1 needs a 0.1.
minor=${version%.*}
echo "libcygnet ${version%%.*} libcygnet${version%%.*} (>= $minor), libcygnet${version%%.*} (<< ${minor%.*}.$((${minor#*.} + 1))~)" >debian/shlibs.local
mkdir -p debian/cygnet/DEBIAN debian/libcygnet0/DEBIAN # by these it knows packages' trees
dpkg-shlibdeps -Tdebian/cygnet.substvars debian/cygnet/usr/bin/cygnet
dpkg-shlibdeps -Tdebian/libcygnet0.substvars "debian/libcygnet0$libdir/libcygnet.so.$version"
touch debian/libcygnet-dev.substvars

for package in cygnet libcygnet0 libcygnet-dev; do
  root=debian/$package
  mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$package"
  gzip -9n <debian/changelog >"$root/usr/share/doc/$package/changelog.gz"
  cp debian/copyright "$root/usr/share/doc/$package/copyright"
  for script in postinst prerm postrm; do
    if [ -f "debian/$package.$script" ]; then install -m755 "debian/$package.$script" "$root/DEBIAN/$script"; fi
  done
  if [ -f "debian/$package.lintian-overrides" ]; then install -D -m644 "debian/$package.lintian-overrides" "$root/usr/share/lintian/overrides/$package"; fi
  if [ -f "debian/$package.triggers" ]; then cp "debian/$package.triggers" "$root/DEBIAN/triggers"; fi
  if [ -d "$root/etc" ]; then (cd "$root" && find etc -type f | sort | sed 's|^|/|') >"$root/DEBIAN/conffiles"; fi
  (cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' | sed 's|^\./||' | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
  if [ "$package" = libcygnet0 ]; then cp debian/shlibs.local "$root/DEBIAN/shlibs"; fi
  dpkg-gencontrol -p"$package" -P"$root" -Tdebian/"$package".substvars -fdebian/files
  chmod 644 "$root/DEBIAN"/control "$root/DEBIAN"/md5sums
  find "$root" -type d -exec chmod 755 {} +
  find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$root" "$out/${package}_${version}_$arch.deb"
done
