#!/bin/sh
# Unpack Debian packages into a root file system, with what a program there needs beside them.
# Usage: unpack.sh FOLDER-OF-PACKAGES ROOT
set -eu
packages=$1 root=$2

# Debian keeps /bin, /lib and /lib64 as links; its base-files would make them.
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/lib64" "$root/usr/sbin" "$root/var/lib/dpkg/status.d" \
    "$root/etc/ssl/certs" "$root/etc/gateway" "$root/opt" "$root/run" "$root/home"
for name in bin lib lib64 sbin; do ln -s "usr/$name" "$root/$name"; done

for package in "$packages"/*.deb; do
    dpkg-deb --extract "$package" "$root"
    # Scanners find packages of an image without dpkg here.
    name=$(dpkg-deb --field "$package" Package)
    { dpkg-deb --field "$package"; echo "Status: install ok installed"; } > "$root/var/lib/dpkg/status.d/$name"
    sha256sum "$package" | cut -d ' ' -f 1 > "$root/var/lib/dpkg/status.d/$name.sha256"
done

# Licences stay; manuals, translations and programs that a gateway does not call go.
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type d -empty -delete
rm -rf "$root/usr/share/man" "$root/usr/share/locale" "$root/usr/share/lintian" "$root/usr/share/bash-completion" \
    "$root/usr/share/info" "$root/usr/share/python3" "$root/usr/share/perl5" "$root/usr/share/debconf" "$root/usr/share/gcc"
find "$root/usr/bin" "$root/usr/sbin" ! -type d ! -name 'python3*' -delete
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +

ln -s "$(basename "$(readlink -f /usr/bin/python3)")" "$root/usr/bin/python3"

cp /usr/lib/os-release "$root/usr/lib/os-release"
ln -s ../usr/lib/os-release "$root/etc/os-release"
# As Debian's ca-certificates composes it. It is no package of the image, but it is in the bill of materials.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
dpkg-query --status ca-certificates > "$root/var/lib/dpkg/status.d/ca-certificates"
cp -r /usr/share/doc/ca-certificates "$root/usr/share/doc/"

echo 'gateway:x:65532:65532:gateway:/:/nonexistent' > "$root/etc/passwd"
echo 'gateway:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
install -d -m 1777 "$root/tmp"
