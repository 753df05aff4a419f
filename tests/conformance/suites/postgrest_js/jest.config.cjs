// The suite lies in a checkout below this folder. It imports the client as npm has it, in place of the checkout's source.
const client = `${__dirname}/node_modules/@supabase/postgrest-js/src`;

module.exports = {
  testEnvironment: "node",
  testSequencer: "./checkout/packages/core/postgrest-js/test/testSequencer.js",
  testTimeout: 30000,
  moduleNameMapper: { "^\\.\\./src/(.*)$": `${client}/$1` },
  transformIgnorePatterns: ["/node_modules/(?!@supabase/)"],
  transform: {
    "\\.ts$": [
      "ts-jest",
      {
        diagnostics: false,
        tsconfig: { target: "ES2022", module: "CommonJS", isolatedModules: true, esModuleInterop: true },
      },
    ],
  },
};
